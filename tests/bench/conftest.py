"""Options of the benchmarks."""


def pytest_addoption(parser):
    parser.addoption("--write", action="store_true", help="keep the counts of instructions in the repository")
