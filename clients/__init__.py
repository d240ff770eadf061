"""What actors and learners use to speak to a replay memory; `netreplay.connect` is the way in."""
