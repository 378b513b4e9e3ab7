"""The double ring (LoongTrain, arXiv:2406.18485): keys go round a window of consecutive ranks, one host, and meanwhile to the same
place of the next window, so that only one hop in `window` crosses hosts."""
import cpscope


def double_ring(scenario: cpscope.Scenario, window: int) -> cpscope.Schedule:
    s = cpscope.Schedule(scenario)
    windows = len(s.ranks) // window
    for outer in range(windows):
        for inner in range(window):
            with s.step() as step:
                for r in s.ranks:
                    group, place = divmod(r, window)
                    kv = s.kv((group - outer) % windows * window + (place - inner) % window)
                    step.compute(r, s.q(r), kv)
                    if inner == 0 and outer + 1 < windows:
                        step.send(kv, r, (group + 1) % windows * window + place)
                    if inner + 1 < window:
                        step.send(kv, r, group * window + (place + 1) % window)
    return s


if __name__ == "__main__":
    s = double_ring(cpscope.Scenario.of(heads=8, kv_heads=2, head_dim=64, lengths=[4096], cp_size=8), 4)
    print(s.prove()["coverage"])
    print(s.run())
