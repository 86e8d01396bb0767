"""What Nsight Compute counts of the kernels of a step, beside what the model of a step says of their bytes."""
import csv
import re
import statistics

COLUMNS = {"us": "gpu__time_duration.sum", "mb": "dram__bytes.sum",
           "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
           "multiprocessors": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
           "warps": "sm__warps_active.avg.pct_of_peak_sustained_active"}
SCALE = {"us": {"ns": 1e-3, "us": 1, "ms": 1e3}, "mb": {"byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1, "Gbyte": 1e3}}
LIBRARY = re.compile("nvjet|cutlass|cublas|gemm|splitK")


def read(text):
    """Kernel -> its counters, medians of its launches; of ncu's CSV. Kernels of cuBLASLt count as one, `products`."""
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if len(rows) < 3:
        return {}
    head, units, rows = rows[0], rows[1], rows[2:]
    found = {}
    for row in rows:
        row = dict(zip(head, row))
        name = re.sub(r"^void ", "", row["Kernel Name"]).split("<")[0].split("(")[0].removesuffix("_kernel")
        name = "products" if LIBRARY.search(name) else name
        for key, column in COLUMNS.items():
            if not row.get(column):
                continue
            unit = units[head.index(column)]
            value = float(row[column].replace(",", "")) * SCALE.get(key, {}).get(unit, 1)
            found.setdefault(name, {}).setdefault(key, []).append(value)
    medians = lambda of: {key: round(statistics.median(values), 3) for key, values in of.items()}
    return {name: {"launches": len(of["us"]), **medians(of)} for name, of in found.items() if "us" in of}


def table(counters, modelled):
    """modelled: kernel -> megabytes of a launch."""
    lines = ["| kernel | us | MB from and to memory | modelled MB | memory's bandwidth | multiprocessors | warps |",
             "|" + "---|" * 7]
    for name, c in sorted(counters.items(), key=lambda item: -item[1]["us"]):
        share = lambda key: f"{c[key]:.0f}%" if key in c else ""
        there = f"{modelled[name]:,.1f}" if name in modelled else ""
        lines.append(f"| {name} | {c['us']:,.1f} | {c.get('mb', 0):,.1f} | {there} | {share('memory')} | "
                     f"{share('multiprocessors')} | {share('warps')} |")
    return lines
