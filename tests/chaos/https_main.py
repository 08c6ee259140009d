"""Program that serves a folder over HTTPS.

Its arguments are address, port, certificate, key and folder.
"""

from __future__ import annotations

import functools
import ssl
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


def main() -> None:
    address, port, certificate_file, key_file, folder = sys.argv[1:]
    handler = functools.partial(SimpleHTTPRequestHandler, directory=folder)
    server = ThreadingHTTPServer((address, int(port)), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file, key_file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
