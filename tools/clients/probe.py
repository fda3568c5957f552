"""The tool-call probe of `canitoolcall` against a flashlane server: python probe.py BASE_URL [MODEL].

Its scenarios ask for more than the built-in model knows, so missing calls do not count. What must hold with any model:
every answer is well-formed, no markup leaks, and a streamed answer equals a whole one.
"""

import sys

from canitoolcall import probe

from openai_client import check

ABILITY = ("expected at least", "is missing argument", "expected non-empty content")


def main():
    url, model = sys.argv[1], (sys.argv[2:] or ["flashlane-tiny"])[0]
    report = probe.probe(url, model)
    faults = [
        o.to_dict()
        for o in report.outcomes
        if o.status not in ("pass", "skip") and not (o.status == "fail" and any(a in o.detail for a in ABILITY))
    ]
    check(faults, [])
    equal = [o.status for o in report.outcomes if o.check == probe.EQUIVALENCE_CHECK]
    check(equal, ["pass"] * len(probe.BUILTIN_SCENARIOS))
    print(f"canitoolcall: {len(equal)} scenarios, nothing leaks, every streamed answer equals the whole one")


if __name__ == "__main__":
    main()
