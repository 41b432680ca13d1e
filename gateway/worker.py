"""`python -m gateway.worker`: one of the workers that `tiergate serve --workers N` starts."""

import sys

from gateway.serve import work

if __name__ == "__main__":
    sys.exit(work())
