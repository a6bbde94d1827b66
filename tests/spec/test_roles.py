"""Every parameter has exactly one role and one sphere axis, or there is an error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nugpt.spec import ModelConfig, RoleRule, Roles, parameter_shapes
from nugpt.spec.parametrization import FAMILIES
from nugpt.spec.roles import NORMALIZED, PRENORM, Assignment

# Role and axis by the last distinctive part of the name, as the method states them.
HIDDEN_1, HIDDEN_0 = Assignment("hidden", 1), Assignment("hidden", 0)
BY_HAND = {
    "E_in": Assignment("input", 1),
    "W_q": HIDDEN_1,
    "W_k": HIDDEN_1,
    "W_v": HIDDEN_1,
    "W_O": HIDDEN_0,
    "W_u": HIDDEN_1,
    "W_nu": HIDDEN_1,
    "W_oMLP": HIDDEN_0,
    "E_out": Assignment("output", 1),
    **{name: Assignment(name, None) for name in ("alpha_A", "alpha_M", "s_qk", "s_u", "s_nu", "s_z")},
}


def config(architecture: str, layers: int = 12) -> ModelConfig:
    return ModelConfig(layers, 4, 6, 29, 16, n_kv_heads=2, architecture=architecture)


def test_roles_and_axes_of_the_normalized_transformer() -> None:
    names = list(parameter_shapes(config("normalized")))
    assert {name.split(".")[-2] for name in names} == set(BY_HAND)
    for name in names:
        assert NORMALIZED(name) == BY_HAND[name.split(".")[-2]], name


def test_the_sphere_axis_has_the_size_of_d_model() -> None:
    shape = config("normalized")
    for name, sizes in parameter_shapes(shape).items():
        axis = NORMALIZED(name).axis
        assert (axis is None) == name.endswith(".stored")
        if axis is not None:
            assert sizes[axis] == shape.d_model


@pytest.mark.parametrize("architecture", ["prenorm", "prenorm-qknorm"])
def test_roles_of_the_baseline(architecture: str) -> None:
    for name in parameter_shapes(config(architecture)):
        part = name.split(".")[-2]
        role = "norm" if "norm" in part else BY_HAND[part].role
        assert PRENORM(name) == Assignment(role, None), name


@pytest.mark.parametrize("architecture", ["normalized", "prenorm", "prenorm-qknorm"])
def test_exactly_one_rule_matches_and_every_role_has_a_row(architecture: str) -> None:
    shape = config(architecture)
    roles = {shape.roles(name).role for name in parameter_shapes(shape)}
    assert roles == set(shape.roles.names) == set(FAMILIES[architecture.split("-")[0]])


# hypothesis also draws texts that stand in the source, and some of these are names of parameters.
@given(st.text(max_size=30).filter(lambda name: not name.endswith((".weight", ".stored"))))
def test_an_unknown_name_raises_in_one_line(name: str) -> None:
    for roles in (NORMALIZED, PRENORM):
        with pytest.raises(ValueError, match="has no role") as refusal:
            roles(name)
        assert repr(name) in str(refusal.value)
        assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize(
    "name",
    [
        "E_in.weight.extra",
        "model.E_in.weight",
        "blocks.0.attention.W_q",
        "blocks.x.attention.W_q.weight",
        "blocks.0.attention.W_qk.weight",
        "blocks.0.mlp.W_q.weight",
        "blocks.0.attention.W_q.bias",
        "E_in.weight\n",
        "",
    ],
)
def test_near_misses_are_unknown(name: str) -> None:
    for roles in (NORMALIZED, PRENORM):
        with pytest.raises(ValueError, match="has no role"):
            roles(name)


def test_a_doubly_matched_name_raises_and_names_both_patterns() -> None:
    roles = Roles([RoleRule(r".*\.weight", "hidden", axis=1), RoleRule(r"lm_head\..*", "output", axis=1)])
    assert roles("fc.weight") == Assignment("hidden", 1)
    assert roles("lm_head.bias") == Assignment("output", 1)
    with pytest.raises(ValueError, match=r"'lm_head\.weight' has more than one role") as refusal:
        roles("lm_head.weight")
    assert r"'.*\\.weight'" in str(refusal.value)
    assert r"'lm_head\\..*'" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_name_matched_twice_by_rules_that_agree_is_still_refused() -> None:
    roles = Roles([RoleRule("a.*", "hidden"), RoleRule(".*b", "hidden")])
    with pytest.raises(ValueError, match="more than one role"):
        roles("ab")


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ({"axis": "1"}, "axis of role 'hidden' is '1', but must be a whole number, or none"),
        ({"axis": True}, "axis of role 'hidden' is True"),
        ({"axis": 1.0}, "axis of role 'hidden' is 1.0"),
        ({"pattern": 3}, "pattern of a rule is 3"),
        ({"role": None}, "role of a rule is None"),
    ],
)
def test_a_rule_of_the_wrong_form_is_refused(rule: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError) as refusal:
        RoleRule(**({"pattern": ".*", "role": "hidden"} | rule))
    assert str(refusal.value).startswith(named)
    assert "\n" not in str(refusal.value)


def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(ValueError, match=r"role 'hidden' has the pattern '\(unclosed'") as refusal:
        RoleRule("(unclosed", "hidden")
    assert "\n" not in str(refusal.value)
