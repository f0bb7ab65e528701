"""Somebody who verifies, with PyJWT: verify.py KEYS AUDIENCE [CERTIFICATE]

In come tokens, each a JSON text on a line of its own; out goes a line for each: its claims, or the name of what is wrong with
it in a text. The key set is kept for an hour, and fetched before that only where a token names a key that is not in it.
"""

import json
import ssl
import sys
import urllib.request

import jwt

keys, audience, *certificate = sys.argv[1:]
# The proxies of this machine are not the guest's.
handlers = [urllib.request.ProxyHandler({})]
if certificate:
    handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=certificate[0])))
urllib.request.install_opener(urllib.request.build_opener(*handlers))
client = jwt.PyJWKClient(keys, lifespan=3600)


def verified(token):
    try:
        key = client.get_signing_key_from_jwt(token)
        return jwt.decode(token, key.key, algorithms=["RS256"], audience=audience)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


for line in sys.stdin:
    print(json.dumps(verified(json.loads(line))), flush=True)
