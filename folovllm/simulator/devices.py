"""What named devices can do, from their makers' data sheets, and which share of it a program gets.

             bytes/s    bfloat16 operations/s   memory     between two of them
    H200     4.8e12     989e12 (dense)          141e9      900 GB/s NVLink, both directions
    H100     3.35e12    989e12                  80e9       900
    A100     2.039e12   312e12                  80e9       600
    RTX 4090 1.008e12   165.2e12                24e9       32 GB/s, PCIe 4.0 x16, one direction
    laptop   89.6e9     0.9e12                  32e9       –

Sources: NVIDIA's data sheets of the H200, the H100 and the A100 (SXM, 80 GB), and its whitepaper of the Ada
architecture (dense, FP32 accumulation). The laptop is no product: two channels of DDR5-5600 are 2 * 8 bytes * 5.6e9,
and eight cores at 3.5 GHz with two AVX2 units of 8 float32 each make 8 * 3.5e9 * 2 * 2 * 8 operations a second.

No program gets all of it. The notes reckon with 4.3 TB/s and 790 TFLOP/s on an H200, shares of 0.9 and 0.8. They are
taken for all GPUs. A CPU gets 0.7 of what was probed (docs/benchmarks/data/decode-roofline.json: 0.67 to 0.78).

A sum over several devices (all-reduce) goes the shorter of two ways, with latencies fitted to vLLM's measurements on
four H100s (its pull requests 24111 and 24532; on two, 7 us for 0.5 MiB in one shot). Without NVLink 20 us are assumed:

                                                                     0.5 MiB   measured   4 MiB   measured
    one shot   6 us  + (devices - 1) * bytes / link                  9.5 us    10         34      38
    ring       19 us + 2 * (devices - 1) / devices * bytes / link    20.7      21         33      39 (NCCL)

vLLM: none
"""

from __future__ import annotations

from dataclasses import dataclass

from folovllm.utils.checks import wrong


@dataclass(frozen=True)
class Device:
    """Rates are those of the data sheet; shares are what of them is got.

    step_overhead: seconds that a step takes beside its products and its attention: small kernels, sampling and upload.
        For GPUs 0.5 ms, the sum that docs/benchmarks/data/decode-time-line-h200.json predicts for 28 layers.
    sum_latency, ring_latency: seconds of a sum of few bytes over several devices, by either way.
    seq_overhead: seconds of the host for each sequence of a step; docs/benchmarks/data/scheduler.json has 1.3e-6.
    """

    name: str
    bandwidth: float
    flops: float
    memory: float
    link: float
    """Bytes/s to one other such device, in one direction."""
    sum_latency: float = 6e-6
    ring_latency: float = 19e-6
    kind: str = "cuda"
    bandwidth_share: float = 0.9
    flops_share: float = 0.8
    step_overhead: float = 500e-6
    seq_overhead: float = 1.3e-6

    def all_reduce_seconds(self, num_bytes: float, devices: int) -> float:
        """A sum over so many devices of `num_bytes` on each, the quicker way."""
        if devices == 1:
            return 0.0
        moved = (devices - 1) * num_bytes / self.link
        return min(self.sum_latency + moved, self.ring_latency + 2 * moved / devices)


DEVICES = {
    "h200": Device("H200", 4.8e12, 989e12, 141e9, 450e9),
    "h100": Device("H100", 3.35e12, 989e12, 80e9, 450e9),
    "a100": Device("A100", 2.039e12, 312e12, 80e9, 300e9),
    "rtx-4090": Device("RTX 4090", 1.008e12, 165.2e12, 24e9, 32e9, 20e-6, 20e-6),
    "laptop": Device("laptop CPU", 89.6e9, 0.9e12, 32e9, 10e9, 20e-6, 20e-6, "cpu", 0.7, 0.7),
}


def find_device(name: str) -> Device:
    """Raises ValueError: no device has the name."""
    if name.lower() not in DEVICES:
        raise wrong("device", f"be one of {', '.join(DEVICES)}", name)
    return DEVICES[name.lower()]
