#!/usr/bin/env python3
"""`perigee quantize` beside nvidia-modelopt on the CPU, in turns, so that both meet the same machine.

    bench.py --perigee target/release/perigee --source FOLDER --scratch DIR [--rounds 3] [--threads 2]

FOLDER holds BF16 weights in safetensors (folders.py makes one); DIR has room for the results. Both sides read the routed experts from the
folder, quantize them to NVFP4 and write the packed tensors to disk: perigee as the whole command, start and error report included; modelopt as
`NVFP4QTensor.quantize` matrix by matrix, with torch's own reading and writing of safetensors, its imports not counted.

The sweep of modelopt on a CPU is its reference calibrator (`NVFP4MSECalibrator`, 126 candidates) with a quantizer made of its own E2M1 cast: slow
enough that it gets one matrix of 128 rows, where perigee gets `--sweep-experts` experts.

Needs torch, safetensors and nvidia-modelopt. Prints one line per run, then for wall time and for processor time (user and system, all threads, which other
work on the machine distorts less) best, ratio of bests and the least ratio of a round.
"""
import argparse
import glob
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time


def peer(mode, source, out, threads, experts):
    import torch
    from modelopt.torch.quantization.calib.mse import NVFP4MSECalibrator
    from modelopt.torch.quantization.qtensor import NVFP4QTensor
    from safetensors import safe_open
    from safetensors.torch import save_file
    torch.set_num_threads(threads)
    if mode == "sweep":
        with safe_open(glob.glob(f"{source}/*.safetensors")[0], "pt") as shard:
            name = next(n for n in shard.keys() if ".mlp." in n and n.endswith("gate_proj.weight"))
            weight = shard.get_slice(name)[:128].float()
        values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])

        def quantize_dequantize(x, amax):
            scale = (amax / 6).view(-1, 1)
            codes = NVFP4QTensor._cast_fp4(x / scale).long()
            return torch.where(codes > 7, -1.0, 1.0) * values[codes % 8] * scale
        start, cpu = time.monotonic(), time.process_time()
        blocks = weight.view(-1, 16)
        calibrator = NVFP4MSECalibrator(amax=blocks.abs().amax(1), global_amax=blocks.abs().max(), axis=0,
                                        quant_func=quantize_dequantize)
        calibrator.collect(blocks)
        calibrator.compute_amax()
        return weight.numel() * 2, time.monotonic() - start, time.process_time() - cpu
    done, start, cpu = 0, time.monotonic(), time.process_time()
    os.makedirs(out, exist_ok=True)
    for path in sorted(glob.glob(f"{source}/*.safetensors")):
        tensors = {}
        with safe_open(path, "pt") as shard:
            for name in shard.keys():
                if ".mlp.experts." not in name:
                    continue
                if experts and int(re.search(r"experts\.(\d+)\.", name)[1]) >= experts:
                    continue
                weight = shard.get_tensor(name)
                packed, scale, scale_2 = NVFP4QTensor.quantize(weight, 16)
                stem = name.removesuffix(".weight")
                tensors |= {name: packed._quantized_data, f"{stem}.weight_scale": scale, f"{stem}.weight_scale_2": scale_2}
                done += weight.numel() * 2
        if tensors:
            save_file(tensors, os.path.join(out, os.path.basename(path)))
    return done, time.monotonic() - start, time.process_time() - cpu


def run_peer(args, mode):
    out = os.path.join(args.scratch, "modelopt")
    command = [sys.executable, __file__, "--peer", mode, "--source", args.source, "--scratch", out,
               "--threads", str(args.threads), "--peer-experts", str(args.peer_experts)]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    shutil.rmtree(out, ignore_errors=True)
    return result["bytes"], result["seconds"], result["cpu"]


def run_ours(args, mode):
    source = args.sweep_source if mode == "sweep" and args.sweep_source else args.source
    out = os.path.join(args.scratch, "perigee")
    shutil.rmtree(out, ignore_errors=True)
    command = [args.perigee, "quantize", source, out, "--format", "nvfp4", "--scales", mode, "--threads", str(args.threads), "--json"]
    used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    start, cpu = time.monotonic(), used()
    report = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    seconds, cpu = time.monotonic() - start, used() - cpu
    shutil.rmtree(out, ignore_errors=True)
    packed = [c["bytes_before"] for c in json.loads(report)["classes"] if c["stored"] == "nvfp4"]
    return sum(packed), seconds, cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--perigee", default="target/release/perigee")
    parser.add_argument("--source", required=True)
    parser.add_argument("--sweep-source", help="a smaller folder for perigee's sweep")
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-experts", type=int, default=8, help="experts per layer that modelopt gets; 0: all")
    parser.add_argument("--peer", choices=["max", "sweep"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        done, seconds, cpu = peer(args.peer, args.source, args.scratch, args.threads, args.peer_experts)
        print(json.dumps({"bytes": done, "seconds": seconds, "cpu": cpu}))
        return
    for mode in ["max", "sweep"]:
        speeds = {"perigee": [], "modelopt": []}
        for turn in range(args.rounds):
            for name, run in [("perigee", run_ours), ("modelopt", run_peer)]:
                load = os.getloadavg()[0]
                done, seconds, cpu = run(args, mode)
                speeds[name].append((done / 1e6 / seconds, done / 1e6 / cpu))
                print(f"{mode:5} round {turn + 1} {name:8} {done / 1e6:9.1f} MB in {seconds:8.2f} s, {cpu:8.2f} s of processor: "
                      f"{speeds[name][-1][0]:8.2f} and {speeds[name][-1][1]:8.2f} MB/s (load before {load:.1f})", flush=True)
        for number, what in enumerate(["wall", "processor"]):
            ours, theirs = ([run[number] for run in speeds[name]] for name in ["perigee", "modelopt"])
            print(f"{mode:5} by {what} time, best: perigee {max(ours):.1f} MB/s, modelopt {max(theirs):.2f} MB/s, ratio of bests "
                  f"{max(ours) / max(theirs):.1f}, least ratio of a round {min(a / b for a, b in zip(ours, theirs)):.1f}")


if __name__ == "__main__":
    main()
