"""`nugpt.param_groups` and `nugpt.retract_` in other people's trainers: models that are not ours, their own roles."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nugpt

WIDTH, HIDDEN, VOCABULARY = 16, 40, 31

ROLES = nugpt.Roles(
    [
        nugpt.RoleRule(r"wte\.weight", "input", axis=1),
        nugpt.RoleRule(r"h\.\d+\.(qkv|up)\.weight", "hidden", axis=1),
        nugpt.RoleRule(r"h\.\d+\.(out|down)\.weight", "hidden", axis=0),
        nugpt.RoleRule(r"lm_head\.weight", "output", axis=1),
        nugpt.RoleRule(r"h\.\d+\.mix", "alpha_A"),
        nugpt.RoleRule(r"logit_scale", "s_z"),
    ]
)


class TheirBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.mix = nn.Parameter(torch.full((WIDTH,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        attended = self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        x = nn.functional.normalize(x + self.mix * (attended - x), dim=-1)
        return nn.functional.normalize(x + self.down(torch.relu(self.up(x))), dim=-1)


class TheirModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.h = nn.ModuleList(TheirBlock() for _ in range(2))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.logit_scale = nn.Parameter(torch.ones(()) * 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        for block in self.h:
            x = block(x)
        logits: Tensor = self.lm_head(x) * self.logit_scale
        return logits


@pytest.fixture
def model() -> TheirModel:
    torch.manual_seed(0)
    return TheirModel()


@pytest.fixture
def resolved() -> nugpt.Resolved:
    base = nugpt.Base.of(nugpt.Extent(d_model=4, head_dim=4, n_layers=1, steps=10, batch_tokens=64))
    target = nugpt.Extent(d_model=16, head_dim=4, n_layers=2, steps=80, batch_tokens=64)
    return nugpt.resolve(nugpt.parametrization("nugpt"), base, target, lr=0.08)


def test_groups_carry_the_tables_learning_rates(model: TheirModel, resolved: nugpt.Resolved) -> None:
    groups = nugpt.param_groups(model.named_parameters(), resolved, ROLES)
    # νGPT with m_width 4, m_depth 2, m_data 8: η_base 0.04, input /2, hidden /4^(3/4), output half of that
    rates = {name: group["lr"] for group in groups for name in group["names"]}
    by_hand = {"wte.weight": 0.02, "lm_head.weight": 0.00707106781186548, "logit_scale": 0.04}
    by_hand |= {f"h.{i}.mix": 0.04 for i in range(2)}
    by_hand |= {f"h.{i}.{name}.weight": 0.0141421356237310 for i in range(2) for name in ("qkv", "out", "up", "down")}
    assert rates == pytest.approx(by_hand, rel=1e-11)
    assert set(rates) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("optimizer_class", [torch.optim.AdamW, torch.optim.Adam])
def test_training_their_way_stays_on_the_sphere(
    model: TheirModel, resolved: nugpt.Resolved, optimizer_class: type[torch.optim.Adam]
) -> None:
    optimizer = optimizer_class(nugpt.param_groups(model.named_parameters(), resolved, ROLES))
    nugpt.retract_(model.named_parameters(), ROLES)
    tokens = torch.randint(VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        nugpt.retract_(model.named_parameters(), ROLES)
        losses.append(loss.item())
        for name, parameter in model.named_parameters():
            if "weight" in name:
                along = 0 if name.endswith(("out.weight", "down.weight")) else 1
                lengths = parameter.detach().double().norm(dim=along)
                torch.testing.assert_close(lengths, torch.ones_like(lengths), rtol=0, atol=1e-6)
    assert losses[-1] < 0.8 * losses[0]


def test_the_optimizers_state_round_trips(model: TheirModel, resolved: nugpt.Resolved) -> None:
    optimizer = torch.optim.AdamW(nugpt.param_groups(model.named_parameters(), resolved, ROLES))
    model(torch.zeros(1, 3, dtype=torch.int64)).sum().backward()
    optimizer.step()
    again = torch.optim.AdamW(nugpt.param_groups(model.named_parameters(), resolved, ROLES))
    again.load_state_dict(optimizer.state_dict())
    assert [group["role"] for group in again.param_groups] == [group["role"] for group in optimizer.param_groups]


def test_tensors_by_name_will_do_for_a_model(resolved: nugpt.Resolved) -> None:
    weights = {"wte.weight": torch.full((2, 4), 3.0), "logit_scale": torch.tensor(8.0)}
    nugpt.retract_(weights.items(), ROLES)
    assert weights["wte.weight"].tolist() == [[0.5] * 4] * 2
    assert weights["logit_scale"].item() == 8.0
    assert [group["role"] for group in nugpt.param_groups(weights.items(), resolved, ROLES)] == ["input", "s_z"]


def test_what_their_roles_do_not_name_is_refused(model: TheirModel, resolved: nugpt.Resolved) -> None:
    model.extra = nn.Linear(3, 3)
    for refused in (
        lambda: nugpt.param_groups(model.named_parameters(), resolved, ROLES),
        lambda: nugpt.retract_(model.named_parameters(), ROLES),
    ):
        with pytest.raises(ValueError, match=r"parameter 'extra\.weight' has no role"):
            refused()
    own_role = nugpt.Roles([nugpt.RoleRule(".*", "adapter")])
    with pytest.raises(ValueError, match="role 'adapter' is not in table 'nugpt'"):
        nugpt.param_groups(model.named_parameters(), resolved, own_role)


def test_a_matrix_without_an_axis_is_refused_where_the_table_has_no_deviation(resolved: nugpt.Resolved) -> None:
    roles = nugpt.Roles([nugpt.RoleRule(r"weight", "hidden")])
    with pytest.raises(ValueError, match=r"'weight' has the role 'hidden' and no axis, but table 'nugpt'"):
        nugpt.initialize_(nn.Linear(4, 4, bias=False), seed=0, resolved=resolved, roles=roles)
