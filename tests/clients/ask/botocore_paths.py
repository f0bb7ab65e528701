"""Asks for paths of the metadata service by botocore's own fetcher, and prints each between marks.

It does what every provider of botocore's for credentials and regions is built on: a session token first, then GET.
"""

import sys

from botocore.utils import IMDSFetcher

fetcher = IMDSFetcher(timeout=1, num_attempts=2)
token = fetcher._fetch_metadata_token()
assert token, "botocore got no token"
for path in sys.argv[1:]:
    answer = fetcher._get_request(path.lstrip("/"), None, token)
    assert answer.status_code == 200, f"{path}: {answer.status_code}"
    print(f"=== {path}\n{answer.text}\n=== end {path} ")
