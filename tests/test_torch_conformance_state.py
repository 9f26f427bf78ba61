# ruff: noqa: PT009 (torch's TestCase: its assertEqual compares tensors within containers)
"""Torch's own optimizer tests of state dicts, copies and hooks, for ASA with each scaling."""

from __future__ import annotations

import copy
import io
import pickle

import torch
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, parametrize

from tests.torch_infos import EXACT, every_input, every_scaling, linear, twin


def named(params, yes):
    return [(f"x{i}", x) for i, x in enumerate(params)] if yes else list(params)


def nameless(state_dict):
    groups = [{k: v for k, v in group.items() if k != "param_names"} for group in state_dict["param_groups"]]
    return {"state": state_dict["state"], "param_groups": groups}


def primed(info, options, device, dtype, *, names=False):
    """Return an optimizer after a few steps, its parameters, and the closure factory of its loss."""
    weight, bias, loss_of = linear(device, dtype)
    optimizer = info.optim_cls(named((weight, bias), names), **options)
    for _ in range(3):
        optimizer.step(loss_of(optimizer, weight, bias))
    return optimizer, [weight, bias], loss_of


def alone(info, options, device, dtype):
    """Return an optimizer of one parameter without a gradient, for the tests of hooks."""
    return info.optim_cls([Parameter(torch.ones(2, 3, device=device, dtype=dtype))], **options)


class TestTorchConformanceState(TestCase):
    def check_together(self, optimizer, params, other, others, loss_of):
        for _ in range(5):
            optimizer.step(loss_of(optimizer, *params))
            other.step(loss_of(other, *others))
            self.assertEqual(others, params, **EXACT)

    @parametrize("names", [True, False])
    @parametrize("other_names", [True, False])
    @every_scaling
    def test_state_dict_is_deterministic(self, device, dtype, optim_info, names, other_names):
        for options in every_input(device, dtype, optim_info, differentiable=False):
            optimizer, params, loss_of = primed(optim_info, options, device, dtype, names=names)
            others = twin(*params)
            other = optim_info.optim_cls(named(others, other_names), **options)
            given = copy.deepcopy(optimizer.state_dict())
            before = copy.deepcopy(given)
            other.load_state_dict(given)
            self.check_together(optimizer, params, other, others, loss_of)
            self.assertEqual(given, before, **EXACT)
            self.assertEqual(nameless(optimizer.state_dict()), nameless(other.state_dict()), **EXACT)
            if names or other_names:
                self.assertEqual(other.state_dict()["param_groups"][0]["param_names"], ["x0", "x1"])
            # A repeated parameter has the same index in the state dict.
            other.param_groups.extend(other.param_groups)
            ours, again = (nameless(o.state_dict())["param_groups"][-1] for o in (optimizer, other))
            self.assertEqual(ours, again)

    @parametrize("names", [True, False])
    @every_scaling
    def test_saved_is_loaded(self, device, dtype, optim_info, names):
        for options in every_input(device, dtype, optim_info, differentiable=False):
            optimizer, params, loss_of = primed(optim_info, options, device, dtype, names=names)
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            for weights_only in (True, False):
                file.seek(0)
                loaded = torch.load(file, weights_only=weights_only)
                self.assertEqual(loaded, optimizer.state_dict(), **EXACT)
            others = twin(*params)
            other = optim_info.optim_cls(named(others, names))
            other.load_state_dict(loaded)
            self.check_together(optimizer, params, other, others, loss_of)

    @every_scaling
    def test_counters_load_as_numbers(self, device, dtype, optim_info):
        for options in every_input(device, dtype, optim_info, differentiable=False):
            optimizer, params, loss_of = primed(optim_info, options, device, dtype)
            others = twin(*params)
            other = optim_info.optim_cls(others, **options)
            state_dict = copy.deepcopy(optimizer.state_dict())
            for state in state_dict["state"].values():
                state.update({k: v.item() for k, v in state.items() if v.dim() == 0})
                self.assertIsInstance(state["step"], float)
            other.load_state_dict(state_dict)
            self.assertEqual(other.state_dict(), optimizer.state_dict(), **EXACT)
            self.check_together(optimizer, params, other, others, loss_of)

    @every_scaling
    def test_state_is_not_empty(self, device, dtype, optim_info):
        for options in every_input(device, dtype, optim_info, differentiable=False):
            optimizer, params, _ = primed(optim_info, options, device, dtype)
            for x in params:
                self.assertEqual(optimizer.state[x]["step"], torch.tensor(3.0, dtype=torch.float64), **EXACT)
                self.assertEqual(optimizer.state[x]["v"].shape, x.shape)

    @parametrize("how", ["deepcopy", "pickle"])
    @every_scaling
    def test_copies(self, device, dtype, optim_info, how):
        clone = copy.deepcopy if how == "deepcopy" else lambda both: pickle.loads(pickle.dumps(both))
        for options in every_input(device, dtype, optim_info, differentiable=False):
            optimizer, params, loss_of = primed(optim_info, options, device, dtype)
            other, others = clone((optimizer, params))
            public, copied = ({k for k in vars(o) if not k.startswith("_")} for o in (optimizer, other))
            self.assertEqual(public, copied)
            self.assertEqual(other.defaults, optimizer.defaults)
            self.check_together(optimizer, params, other, others, loss_of)

    @every_scaling
    def test_it_prints(self, device, dtype, optim_info):
        for options in every_input(device, dtype, optim_info):
            text = repr(alone(optim_info, options, device, dtype))
            self.assertIn(optim_info.name, text)
            for option in options:
                self.assertIn(f"{option}: ", text)

    @every_scaling
    def test_state_dict_hooks(self, device, dtype, optim_info):
        for options in every_input(device, dtype, optim_info):
            optimizer = alone(optim_info, options, device, dtype)

            def pre(optimizer):
                optimizer.state["seen"] = 1

            def post(optimizer, state_dict):
                return {**state_dict, "seen": state_dict["state"].pop("seen", 0)}

            handle = optimizer.register_state_dict_post_hook(post)
            self.assertEqual(optimizer.state_dict()["seen"], 0)
            handle.remove()
            optimizer.register_state_dict_pre_hook(pre)
            self.assertEqual(optimizer.state_dict()["state"]["seen"], 1)
            optimizer.register_state_dict_post_hook(post)
            state_dict = optimizer.state_dict()
            self.assertEqual(state_dict["seen"], 1)
            self.assertNotIn("seen", state_dict["state"])

    @every_scaling
    def test_load_state_dict_hooks(self, device, dtype, optim_info):
        for options in every_input(device, dtype, optim_info):
            optimizer = alone(optim_info, options, device, dtype)
            state_dict = optimizer.state_dict()

            def edit(_, state_dict):
                state_dict["param_groups"][0]["lr"] = 0.002

            def replace(_, state_dict):
                state_dict = copy.deepcopy(state_dict)
                state_dict["param_groups"][0]["lr"] = 0.003
                return state_dict

            def post(optimizer):
                optimizer.state["lr seen"] = optimizer.param_groups[0]["lr"]

            handles = [optimizer.register_load_state_dict_pre_hook(edit)]
            optimizer.register_load_state_dict_post_hook(post)
            optimizer.load_state_dict(copy.deepcopy(state_dict))
            self.assertEqual(optimizer.state["lr seen"], 0.002)
            handles.append(optimizer.register_load_state_dict_pre_hook(replace, prepend=True))
            optimizer.load_state_dict(copy.deepcopy(state_dict))
            self.assertEqual(optimizer.state["lr seen"], 0.002)  # this hook was prepended, so the other one runs last
            for handle in handles:
                handle.remove()
            optimizer.register_load_state_dict_pre_hook(replace)
            optimizer.load_state_dict(copy.deepcopy(state_dict))
            self.assertEqual(optimizer.state["lr seen"], 0.003)

    @every_scaling
    def test_step_hooks(self, device, dtype, optim_info):
        for options in every_input(device, dtype, optim_info):
            optimizers = [alone(optim_info, options, device, dtype) for _ in range(2)]
            seen = []

            def note(word, seen=seen):
                return lambda *_: seen.append(word)

            handles = [
                register_optimizer_step_pre_hook(note("all pre")),
                register_optimizer_step_post_hook(note("all post")),
            ]
            for optimizer in optimizers:
                handles.append(optimizer.register_step_pre_hook(note("pre")))
                handles.append(optimizer.register_step_post_hook(note("post")))
            for optimizer in (*optimizers, optimizers[0]):
                optimizer.step()
            self.assertEqual(seen, ["all pre", "pre", "post", "all post"] * 3)
            for handle in handles:
                handle.remove()
            optimizers[0].step()
            self.assertEqual(len(seen), 12)


instantiate_device_type_tests(TestTorchConformanceState, globals(), only_for="cpu")
