"""Makes tokens that are none: forge.py KEY OTHER CERTIFICATE TOKEN TOKEN > forgeries

In come this node's private key and another one, the certificate, and two tokens of this node; out goes a line for each
forgery: what was done to it, a tabulator, and the token as a JSON text. Where the signature is good, times are not.

No forgery differs from a token only in bits that no signature has. The last character of one stands for two bits and has
four that mean nothing, and PyJWT passes over a `=` behind it: what such a text decodes to is the very signature.
"""

import hashlib
import hmac
import json
import random
import sys
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode

import jwt

key, other, certificate = (open(path).read() for path in sys.argv[1:4])
token, second = sys.argv[4:]
head, payload, signature = token.split(".")
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def decoded(part):
    return json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def encoded(value):
    text = value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
    return urlsafe_b64encode(text).rstrip(b"=").decode()


def forged(what, token):
    print(what, json.dumps(token), sep="\t")


def signed(what, key, claims={}, **header):
    header = {**decoded(head), **header}
    forged(what, jwt.encode({**decoded(payload), **claims}, key, algorithm="RS256", headers=header))


random.seed(1)
for at in range(len(token) - 1):
    if token[at] == ".":
        continue
    # Of seven: tokens are ASCII, and what else came in would not get as far as here.
    flipped = chr(ord(token[at]) ^ 1 << random.randrange(7))
    forged(f"bit at {at}", token[:at] + flipped + token[at + 1 :])
last = ALPHABET[ALPHABET.index(token[-1]) ^ 16]
forged("last bits of the signature", token[:-1] + last)

theirs = second.split(".")
mine = [head, payload, signature]
for at, name in ((1, "payload"), (2, "signature")):
    forged(f"another's {name}", ".".join([*mine[:at], theirs[at], *mine[at + 1 :]]))
forged("in another order", ".".join([payload, head, signature]))

for alg in ("none", "None", "NONE", "nOnE"):
    bare = encoded({**decoded(head), "alg": alg})
    for end in ("", signature):
        forged(f"alg {alg}", f"{bare}.{payload}.{end}")
for alg, digest in (("HS256", hashlib.sha256), ("HS384", hashlib.sha384), ("HS512", hashlib.sha512)):
    body = f'{encoded({**decoded(head), "alg": alg})}.{payload}'
    for secret in (certificate, certificate.strip(), decoded(head)["kid"], ""):
        forged(f"{alg} with what is public", f"{body}.{encoded(hmac.new(secret.encode(), body.encode(), digest).digest())}")
for alg in ("RS384", "RS512", "PS256", "ES256", "", None):
    forged(f"alg {alg}", f'{encoded({**decoded(head), "alg": alg})}.{payload}.{signature}')

signed("another key, our kid", other)
signed("another key, its kid", other, kid="x" * 43)
for kid in ("", "x", decoded(head)["kid"][::-1], "../../pve1/pve-ssl.pem", "http://169.254.169.254/"):
    forged(f"kid {kid}", f'{encoded({**decoded(head), "kid": kid})}.{payload}.{signature}')
own = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(jwt.algorithms.RSAAlgorithm(None).prepare_key(other).public_key()))
signed("a key of its own", other, jwk=own, kid="x")

now = int(time.time())
for ago in (1, 60, 3600):
    signed("expired", key, {"exp": now - ago, "nbf": now - ago - 300, "iat": now - ago - 300})
for ahead in (60, 3600):
    signed("not yet", key, {"nbf": now + ahead, "exp": now + ahead + 300})
for claim, value in (("sub", "spiffe://pve1/1"), ("aud", ["a", "b"]), ("exp", now + 10**9)):
    forged(f"other {claim}", f"{head}.{encoded({**decoded(payload), claim: value})}.{signature}")

for length in range(0, len(token), 13):
    forged(f"its first {length}", token[:length])
for end in ("A", "AA"):
    forged(f"longer by {len(end)}", token + end)
for end in (".", ".A", "." + signature):
    forged("a part too many", token + end)
for pad in ("=", "=="):
    forged("a header that is padded", f"{head}{pad}.{payload}.{signature}")
    forged("a payload that is padded", f"{head}.{payload}{pad}.{signature}")
# Bits behind the end: the text is what is signed, whatever it decodes to.
for part, where in ((0, "header"), (1, "payload")):
    spare = {2: 15, 3: 3}.get(len(mine[part]) % 4, 0)
    for bits in range(1, spare + 1):
        changed = mine[part][:-1] + ALPHABET[ALPHABET.index(mine[part][-1]) ^ bits]
        forged(f"spare bits of the {where}", ".".join(changed if at == part else it for at, it in enumerate(mine)))
for at in random.sample(range(len(token) - 8), 60):
    if "." not in token[at : at + 8]:
        forged(f"eight turned round at {at}", token[:at] + token[at : at + 8][::-1] + token[at + 8 :])
