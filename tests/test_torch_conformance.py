# ruff: noqa: PT009, PT027 (torch's TestCase: its assertEqual compares tensors within containers)
"""Torch's own optimizer tests of steps, for ASA with each scaling (state: test_torch_conformance_state).

Torch's tests of foreach, fused and capturable variants, sparse gradients, a second device and checkpoints of older
versions do not apply here.
"""

from __future__ import annotations

import copy
import itertools

import torch
from torch.nn import Parameter
from torch.optim import lr_scheduler
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, TensorTracker, optims
from torch.testing._internal.common_utils import TestCase, parametrize

from tests.torch_infos import EXACT, INFOS, every_input, every_scaling, inputs, linear, twin

USUAL = {"lr": 1e-3, "beta": 0.9, "weight_decay": 0.0}


def advance(schedule, loss):
    """Call ``step`` with the arguments that the schedule requires."""
    watches = isinstance(getattr(schedule, "scheduler", schedule), lr_scheduler.ReduceLROnPlateau)
    schedule.step(*[loss] * watches)


def torch_twin(name, params, **options):
    """Return the torch optimizer that is equal to ASA with this scaling (and bias correction, for Adam)."""
    if name == "ASASHB":
        return torch.optim.SGD(params, momentum=0.9, dampening=0.9, **options)
    return torch.optim.Adam(params, eps=1e-7, amsgrad=name == "ASAAMSGrad", **options)


class TestTorchConformance(TestCase):
    def check_direction(self, closure, optimizer, schedules=(), *, up=False):
        start = closure().item()
        for _ in range(20):
            loss = optimizer.step(closure).item()
            for schedule in schedules:
                advance(schedule, loss)
        (self.assertGreater if up else self.assertLess)(closure().item(), start)

    @every_scaling
    def test_inputs_leave_implementations_to_torch(self, device, dtype, optim_info):
        for given in inputs(device):
            self.assertTrue(given.kwargs.keys().isdisjoint({"foreach", "fused", "differentiable"}))

    @every_scaling
    def test_errors(self, device, dtype, optim_info):
        for error in optim_info.optim_error_inputs_func(device, dtype):
            given = error.optimizer_error_input
            expected = self.assertRaisesRegex(error.error_type, error.error_regex)
            if error.error_on == OptimizerErrorEnum.CONSTRUCTION_ERROR:
                with expected:
                    optim_info.optim_cls(given.params, **given.kwargs)
            else:
                optimizer = optim_info.optim_cls(given.params, **given.kwargs)
                with expected:
                    optimizer.step()

    @parametrize("contiguous", [True, False])
    @parametrize("scheduled", [True, False])
    @every_scaling
    def test_goes_in_the_right_direction(self, device, dtype, optim_info, contiguous, scheduled):
        schedules = itertools.cycle(optim_info.scheduler_inputs if scheduled else [[]])
        for options in every_input(device, dtype, optim_info, differentiable=False):
            weight, bias, loss_of = linear(device, dtype, contiguous=contiguous)
            optimizer = optim_info.optim_cls([weight, bias], **options)
            running = [make(optimizer) for make in next(schedules)]
            up = options.get("maximize", False)
            self.check_direction(loss_of(optimizer, weight, bias), optimizer, running, up=up)

    @every_scaling
    def test_groups_with_schedules_go_in_the_right_direction(self, device, dtype, optim_info):
        for schedules in optim_info.scheduler_inputs:
            weight, bias, loss_of = linear(device, dtype)
            optimizer = optim_info.optim_cls([{"params": [weight]}, {"params": [bias], "lr": 0.01}])
            self.check_direction(loss_of(optimizer, weight, bias), optimizer, [make(optimizer) for make in schedules])

    @every_scaling
    def test_groups_with_weight_decay(self, device, dtype, optim_info):
        for options in every_input(device, dtype, optim_info, differentiable=False):
            weight, bias, loss_of = linear(device, dtype)
            groups = [{"params": [weight], **options}, {"params": [bias], **options, "weight_decay": 0.0}]
            optimizer = optim_info.optim_cls(groups)
            up = options.get("maximize", False)
            self.check_direction(loss_of(optimizer, weight, bias), optimizer, up=up)

    @every_scaling
    def test_groups_with_their_own_lr(self, device, dtype, optim_info):
        for options in every_input(device, dtype, optim_info, differentiable=False):
            weight, bias, loss_of = linear(device, dtype)
            (still,) = twin(bias)
            groups = [{"params": [weight, bias], "lr": 1e-3, **options}, {"params": [still]}]
            optimizer = optim_info.optim_cls(groups, lr=1e-28)
            closure = loss_of(optimizer, weight, bias)
            before = still.clone()

            def with_still(closure=closure, still=still):
                loss = closure()
                still.grad = torch.ones_like(still)
                return loss

            self.check_direction(with_still, optimizer, up=options.get("maximize", False))
            self.assertEqual(still, before, **EXACT)

    @parametrize("dimensions", [0, 1, 2])
    @every_scaling
    def test_tensor_rates(self, device, dtype, optim_info, dimensions):
        for options in every_input(device, dtype, optim_info, differentiable=False):
            rates = {name: float(options.get(name, usual)) for name, usual in USUAL.items()}
            tensors = {name: torch.full([1] * dimensions, rate, dtype=torch.float64) for name, rate in rates.items()}
            weight, bias, loss_of = linear(device, dtype)
            params, others = [weight, bias], twin(weight, bias)
            plain = optim_info.optim_cls(params, **{**options, **rates})
            tensor = optim_info.optim_cls(others, **{**options, **tensors})
            for _ in range(5):
                plain.step(loss_of(plain, *params))
                tensor.step(loss_of(tensor, *others))
                self.assertEqual(others, params)

    @optims(INFOS.values(), dtypes=[torch.complex64])
    def test_complex_is_pairs_of_reals(self, device, dtype, optim_info):
        for options in every_input(device, dtype, optim_info, differentiable=False):
            mixed = [Parameter(torch.randn(s, dtype=d)) for s, d in (((10, 5), dtype), ((), dtype), ((3,), None))]
            reals = [Parameter((torch.view_as_real(x) if x.is_complex() else x).detach().clone()) for x in mixed]
            options |= {"implementation": "loop"}  # the path used for complex numbers: other paths round differently
            optimizer, other = optim_info.optim_cls(mixed, **options), optim_info.optim_cls(reals, **options)
            for _ in range(3):
                for x, pair in zip(mixed, reals, strict=True):
                    pair.grad = torch.randn_like(pair)
                    x.grad = torch.view_as_complex(pair.grad) if x.is_complex() else pair.grad.clone()
                optimizer.step()
                other.step()
            self.assertEqual([torch.view_as_real(x) if x.is_complex() else x for x in mixed], reals, **EXACT)

    @optims(INFOS.values(), dtypes=[torch.complex64])
    def test_complex_is_real_and_imaginary_part(self, device, dtype, optim_info):
        for options in every_input(device, dtype, optim_info, differentiable=False):
            z = torch.randn(2, device=device, dtype=dtype, requires_grad=True)
            parts = [z.real.detach().clone().requires_grad_(), z.imag.detach().clone().requires_grad_()]
            optimizer, other = optim_info.optim_cls([z], **options), optim_info.optim_cls(parts, **options)
            tracker = TensorTracker()
            for _ in range(3):
                for method, value in ((optimizer, lambda z=z: z), (other, lambda p=parts: torch.complex(*p))):
                    method.zero_grad()
                    x, y = value()
                    ((1 - x) ** 2 + 100 * (y - x**2) ** 2).abs().backward()
                for seen in (z.real, z.imag, z.grad.real, z.grad.imag):
                    tracker.add(seen)
                for seen in (*parts, *(part.grad for part in parts)):
                    tracker.pop_check_set(
                        seen, self
                    )  # compares, then copies, so that rounding errors do not accumulate
                optimizer.step()
                other.step()
                self.assertEqual([z.real, z.imag], parts)
            self.assertTrue(tracker.all_popped())

    @optims([INFOS["shb"], INFOS["adam"], INFOS["amsgrad"]], dtypes=[torch.float64])
    def test_matches_torch_through_frozen_layers(self, device, dtype, optim_info):
        corrected = optim_info.name != "ASASHB"
        a = torch.linspace(0.1, 0.6, 6, device=device, dtype=dtype).reshape(3, 2)
        for given in ({}, {"weight_decay": 0.1}, {"maximize": True}, {"lr": torch.tensor(0.01, dtype=dtype)}):
            options = {"lr": 0.01, **given}
            ours = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Sigmoid(), torch.nn.Linear(3, 1)).to(dtype)
            theirs = copy.deepcopy(ours)
            optimizers = {
                ours: optim_info.optim_cls(ours.parameters(), bias_correction=corrected, **options),
                theirs: torch_twin(optim_info.name, theirs.parameters(), **options),
            }
            for k in range(7):
                for model, optimizer in optimizers.items():
                    optimizer.zero_grad()
                    model[2].requires_grad_(k not in (3, 4))
                    if k != 2:  # in step 2 no parameter has a gradient
                        model(a).sum().backward()
                    optimizer.step()
                self.assertEqual(list(ours.parameters()), list(theirs.parameters()), rtol=1e-12, atol=1e-14)

    @every_scaling
    def test_gradients_are_only_read(self, device, dtype, optim_info):
        for options in every_input(device, dtype, optim_info, differentiable=False):
            weight, bias, loss_of = linear(device, dtype)
            optimizer = optim_info.optim_cls([weight, bias], **options)
            for _ in range(3):
                loss_of(optimizer, weight, bias)()
                before = [(x.grad, x.grad._version, x.grad.clone()) for x in (weight, bias)]
                optimizer.step()
                for x, (grad, version, values) in zip((weight, bias), before, strict=True):
                    self.assertIs(x.grad, grad)
                    self.assertEqual(x.grad._version, version)
                    self.assertEqual(x.grad, values, **EXACT)

    @every_scaling
    def test_step_without_gradients_moves_nothing(self, device, dtype, optim_info):
        for options in every_input(device, dtype, optim_info):
            params = [torch.randn(2, 3, device=device, dtype=dtype) for _ in range(2)]
            before = [x.clone() for x in params]
            optimizer = optim_info.optim_cls(params, **options)
            self.assertEqual(optimizer.step(lambda: torch.tensor([1.0])), torch.tensor([1.0]))
            self.assertEqual(params, before, **EXACT)
            self.assertEqual(len(optimizer.state), 0)

    @every_scaling
    def test_zero_and_empty_gradients_move_nothing(self, device, dtype, optim_info):
        for options in every_input(device, dtype, optim_info):
            if options.get("weight_decay", 0) != 0:
                continue
            params = [torch.randn(5, 1, device=device, dtype=dtype), torch.empty(0, device=device, dtype=dtype)]
            before = [x.clone() for x in params]
            optimizer = optim_info.optim_cls(params, **options)
            for _ in range(3):
                for x in params:
                    x.grad = torch.zeros_like(x)
                optimizer.step()
            self.assertEqual(params, before, **EXACT)

    @every_scaling
    def test_gradients_flow_through_rates(self, device, dtype, optim_info):
        numbers = ([0.3, -1.2, 2.0], [1.0, 0.5, -0.3], 0.1, 0.05, 0.9)
        given = [torch.tensor(n, dtype=torch.float64, device=device, requires_grad=True) for n in numbers]
        for options in every_input(device, dtype, optim_info, differentiable=False):
            others = {k: v for k, v in options.items() if k not in ("lr", "weight_decay", "beta")}

            def end(start, slope, lr, decay, beta, others=others):
                x = start.clone()
                rates = {"lr": lr, "weight_decay": decay, "beta": beta, **others}
                optimizer = optim_info.optim_cls([x], differentiable=True, **rates)
                for k in range(3):
                    x.grad = (k + 1) * slope + 0.3 * x
                    optimizer.step()
                return x

            self.assertTrue(torch.autograd.gradcheck(end, given))


instantiate_device_type_tests(TestTorchConformance, globals(), only_for="cpu")
