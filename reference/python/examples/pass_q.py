"""Pass-Q (Yang et al. 2024, arXiv:2411.01783): queries travel round the ring, keys stay, and all partial results return at the end."""
import cpscope


def pass_q(scenario: cpscope.Scenario) -> cpscope.Schedule:
    s = cpscope.Schedule(scenario, returns="end")
    last = len(s.ranks) - 1
    for i in s.ranks:
        with s.step() as step:
            for r in s.ranks:
                q = s.q(r - i)
                step.compute(r, q, s.kv(r))
                if i < last:
                    step.send(q, r, (r + 1) % len(s.ranks))
    return s


if __name__ == "__main__":
    s = pass_q(cpscope.Scenario.of(heads=8, kv_heads=8, head_dim=64, lengths=[64], kv_lengths=[4096], cp_size=4, cp_comm_type="pass_q",
                                   attn_mask_type="causal_bottom_right"))
    print(s.compare_with("pass_q"))
    print(s.run())
