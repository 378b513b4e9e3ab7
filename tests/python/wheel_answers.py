"""wheel_answers.py FOLDER: what an installation of cpscope answers, as FOLDER/answers.json and FOLDER/answers.npz, for a comparison
with other installations. Needs the package alone; exit code 1 when a right answer fails or a wrong one passes."""
import json
import pathlib
import sys

import numpy as np

import cpscope

GRADED = ("zigzag", "thd_padding_p2p", "sink_p2p", "softcap_rope", "mla_head_dims", "merge_16bit", "cross_attention", "chunked_thd_a2a")


def main():
    folder = pathlib.Path(sys.argv[1])
    answers, arrays = {}, {}
    for name in cpscope.shipped():
        scenario = cpscope.Scenario.load(name)
        layout = scenario.layout()
        if layout.tokens <= 5000:
            answers[name] = {"layout": layout.to_dict(full=True), "plan": scenario.plan().hash}
    for name in GRADED:
        scenario = cpscope.Scenario.load(name)
        right = scenario.oracle()
        verdict = scenario.grade(right)
        answers[name]["grade"] = verdict.document
        arrays |= {f"{name}.{tensor}": value for tensor, value in [*scenario.inputs().items(), *right.items()]}
        wrong = dict(right, out=right["out"].copy())
        row = int(np.argmax(np.abs(wrong["out"]).sum((1, 2))))
        wrong["out"][row] *= 1.5
        if not verdict or scenario.grade(wrong):
            print(f"{name}: the right answer {'passes' if verdict else 'fails'}, the wrong one passes or hides it\n{verdict}")
            return 1
    (folder / "answers.json").write_text(json.dumps({"module": cpscope._core.__file__, "answers": answers}, sort_keys=True))
    np.savez(folder / "answers.npz", **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
