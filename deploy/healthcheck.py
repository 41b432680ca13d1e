"""Asks the gateway in this container whether it is alive; the image has no curl. `python healthcheck.py PORT`."""

import http.client
import sys


def alive(port: int) -> bool:
    """`http.client`, not `urllib`: a proxy in the environment must not be asked about our own loopback."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health/live")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(not alive(int(sys.argv[1])))
