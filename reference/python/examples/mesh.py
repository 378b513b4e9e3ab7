"""Mesh-Attention (arXiv:2512.20968): the square of query and key chunks is cut into tiles of a query chunks by P / a key chunks, one
for each rank, with its own chunks in it. One chunk arrives in each step, the one that meets more of those at hand."""
import cpscope


def mesh(scenario: cpscope.Scenario, a: int) -> cpscope.Schedule:
    s = cpscope.Schedule(scenario)
    b = len(s.ranks) // a
    steps = [s.step() for _ in range(a + b - 1)]
    for r in s.ranks:
        row, column = r // a, r % a
        owners_of_q = [row * a + (column + i) % a for i in range(a)]    # its own chunk first
        owners_of_kv = [column + (row + i) % b * a for i in range(b)]
        steps[0].compute(r, s.q(r), s.kv(r))
        q, kv = [s.q(r)], [s.kv(r)]
        for before, step in zip(steps, steps[1:]):
            if len(kv) < b and (len(q) >= len(kv) or len(q) == a):
                owner = owners_of_kv[len(kv)]
                before.send(s.kv(owner), owner, r)
                step.compute(r, q, s.kv(owner))
                kv.append(s.kv(owner))
            else:
                owner = owners_of_q[len(q)]
                before.send(s.q(owner), owner, r)
                step.compute(r, s.q(owner), kv)
                q.append(s.q(owner))
    return s


if __name__ == "__main__":
    s = mesh(cpscope.Scenario.of(heads=8, head_dim=64, lengths=[4096], cp_size=8, cp_comm_type="mesh", mesh_q=2), 2)
    print(s.compare_with("mesh"))
    print(s.run())
