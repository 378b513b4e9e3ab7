"""What is written of a whole run: the JSON document, its table and its chart."""
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import time

import chart
import figures


# Packages of the peers: FlashAttention-3 is a library of xformers.
PEER_PACKAGES = ("xformers", "flash-attn-4", "flashinfer-python", "nvidia-cutlass-dsl", "nvidia-cudnn-frontend", "transformer-engine")


def peer_versions():
    """[package] The version of each peer that Python finds here."""
    versions = {}
    for package in PEER_PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return versions


def heading(subject, root):
    """Where, when and on what; needs PyTorch and a GPU."""
    import torch
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                            text=True).stdout.split("\n")[0].strip()
    sys.path.insert(0, str(pathlib.Path(root) / "reference/python"))
    import gpu_summary
    return {"schema": 1, "subject": subject, "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "command": " ".join(sys.argv), "device": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count(),
            "driver": driver, "torch": torch.__version__, "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(), "nccl": list(torch.cuda.nccl.version()),
            "peers": peer_versions(), "kernels_hash": gpu_summary.kernels_hash(pathlib.Path(root))}


def write(document, folder, peers, name="ratios", passes=figures.PASSES):
    """NAME.json, NAME.txt and NAME.svg, each whole at any time. Returns the text."""
    rows = document["shapes"]
    known = [row for row in rows if "flops" in row]
    words = [f"{document['subject']}: {document['device']}, driver {document['driver']}, torch {document['torch']}, "
             f"{document['date']}", "TFLOP/s of visible pairs; then how many times as fast as each peer we are",
             "", *figures.table(rows, peers, passes, "gemm" if passes == figures.PASSES else "kernels"), "",
             *figures.best_ways(rows, passes), *figures.reasons(rows), ""]
    text = "\n".join(words)
    pictures = chart.chart(known, ["cpscope", *peers], words[0], passes) if known else ""
    for ending, content in ((".json", json.dumps(document, indent=1) + "\n"), (".txt", text), (".svg", pictures)):
        path = pathlib.Path(folder) / (name + ending)
        half = path.with_suffix(path.suffix + ".part")
        half.write_text(content)
        half.replace(path)
    return text
