"""Ring attention (Liu et al. 2023, arXiv:2310.01889): in every step each rank computes with the keys that it has and passes them
on; in the backward the sum of their gradients follows them, and the last hop brings it home."""
import cpscope


def ring(scenario: cpscope.Scenario) -> cpscope.Schedule:
    s = cpscope.Schedule(scenario, gradients="with_keys")
    last = len(s.ranks) - 1
    for i in s.ranks:
        with s.step() as step:
            for r in s.ranks:
                kv = s.kv(r - i)  # rank -1 is the last one
                step.compute(r, s.q(r), kv)
                if i < last:
                    step.send(kv, r, (r + 1) % len(s.ranks))
    return s


if __name__ == "__main__":
    s = ring(cpscope.Scenario.of(heads=8, kv_heads=2, head_dim=64, lengths=[3000, 1096], cp_size=4, layout="contiguous",
                                 dkv_hops="ring"))
    print(s.prove()["coverage"])
    print(s.compare_with("p2p"))
    print(s.run())
    print(s.timeline("h200x8"))
    s.show("balance").save("ring.svg")
