"""The zigzag ring of ring-flash-attention: of the 2P chunks of every sequence rank r has r and 2P - 1 - r, so that all ranks have
the same causal work in every step, and a step computes two full rectangles instead of a mask."""
import cpscope


def zigzag_ring(scenario: cpscope.Scenario) -> cpscope.Schedule:
    s = cpscope.Schedule(scenario, gradients="with_keys")
    last = len(s.ranks) - 1
    for i in s.ranks:
        with s.step() as step:
            for r in s.ranks:
                owner = (r - i) % len(s.ranks)
                kv = s.kv(owner)
                if owner == r:
                    step.compute(r, s.q(r), kv)
                elif owner < r:  # all queries come after the owner's first chunk and before its second
                    step.compute(r, s.q(r), s.kv(owner, chunk=0))
                else:            # only the second chunk of the queries comes after the owner's
                    step.compute(r, s.q(r, chunk=1), kv)
                if i < last:
                    step.send(kv, r, (r + 1) % len(s.ranks))
    return s


if __name__ == "__main__":
    s = zigzag_ring(cpscope.Scenario.of(heads=8, kv_heads=2, head_dim=64, lengths=[3000, 1096], cp_size=4, dkv_hops="ring"))
    print(s.compare_with("p2p"))
    print(s.run())
