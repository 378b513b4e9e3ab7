"""All-gather (Llama 3's context parallelism, arXiv:2407.21783): every rank gets all keys before it computes, in one step."""
import cpscope


def all_gather(scenario: cpscope.Scenario) -> cpscope.Schedule:
    s = cpscope.Schedule(scenario)
    keys = s.join(s.kv(owner) for owner in s.ranks)
    with s.step() as step:
        for r in s.ranks:
            step.gather(keys, r, before=True)
            step.compute(r, s.q(r), keys)
    return s


if __name__ == "__main__":
    s = all_gather(cpscope.Scenario.of(heads=8, kv_heads=2, head_dim=64, lengths=[3000, 1096], cp_size=4))
    print(s.compare_with("all_gather"))
    print(s.run())
