"""Running the replay memory: configuration, serving, telemetry."""
