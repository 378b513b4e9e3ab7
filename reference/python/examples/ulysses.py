"""Ulysses (Jacobs et al. 2023, arXiv:2309.14509): each rank computes some heads of the whole batch. Ranks that share a KV head each
get a copy of it, and their gradients are added by the owners of the rows."""
import cpscope


def ulysses(scenario: cpscope.Scenario) -> cpscope.Schedule:
    s = cpscope.Schedule(scenario)
    ranks = len(s.ranks)
    with s.step() as step:
        for r in s.ranks:
            heads = range(r * scenario.heads // ranks, (r + 1) * scenario.heads // ranks)
            if not heads:
                continue
            keys = s.join(s.kv(owner, heads=s.kv_heads(heads)) for owner in s.ranks)
            step.gather(keys, r, before=True)
            step.compute(r, s.q(r, heads=heads), keys)
            if ranks > 1:
                others = s.join(s.q(owner, heads=heads) for owner in s.ranks if owner != r)
                step.gather(others, r, before=True)
                step.compute(r, others, keys)
    return s


if __name__ == "__main__":
    s = ulysses(cpscope.Scenario.of(heads=8, kv_heads=2, head_dim=64, lengths=[3000, 1096], cp_size=4))
    print(s.compare_with("a2a"))
    print(s.run())
