"""Preparation of one rank's gradients, and their sum over ranks."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.collectives.base import Collective, name_in_graph, to_tensor
from tfdist.compat.keras.hooks import GradientPlan
from tfdist.compat.owned_variables import DividedTable
from tfdist.compat.patching import holding
from tfdist.gradients.reducer import GradientReducer, weigh
from tfdist.gradients.sparse import with_sums_dense
from tfdist.training.state import NotedState
from tfdist.training.step import LoopStep, Step
from tfdist.training.step_numbers import StepNumbers


class RankGradients:
    """The `GradientHooks` over a collective; layer state travels with gradients."""

    # Whether the devices of this process share the optimizer's variables.
    updates_once = False

    def __init__(
        self, collective: Collective, reducer: GradientReducer, noted: NotedState
    ) -> None:
        self._collective = collective
        self._reducer = reducer
        self._noted = noted
        self._numbers = StepNumbers(1 if collective.is_lone else collective.size)
        # The step that is being traced, or run eagerly.
        self.step: Step | None = None
        # The same in a custom loop.
        self.loop_step: LoopStep | None = None
        self.are_reduced = self.is_applying = False

    def prepare_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> GradientPlan:
        """Fill in gradients that only other ranks have, and weigh all by rows."""
        if self.are_reduced:
            return GradientPlan(gradients, variables)
        rest = [i for i, v in enumerate(variables) if not isinstance(v, DividedTable)]
        plan = self._prepare([gradients[i] for i in rest], [variables[i] for i in rest])
        prepared = [*gradients]
        for i, gradient in zip(rest, plan.gradients, strict=True):
            prepared[i] = gradient
        return plan._replace(gradients=prepared, variables=variables)

    def _prepare(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> GradientPlan:
        """Prepare the gradients of weights that all ranks have."""
        # Eager code cannot see where a gradient comes from.
        is_summed = self.step is not None and self.step.has_sparse_data()
        is_summed &= tf.executing_eagerly()
        gradients = [
            None if g is None else with_sums_dense(to_tensor(g), is_summed=is_summed)
            for g in gradients
        ]
        plan = self._reducer.complete(gradients, variables, "the optimizer")
        if self.step is None:
            # A custom loop divides its loss by the global batch size itself.
            return plan
        weight = self._reducer.weight(self.step.share())
        weighed = weigh(plan.gradients, weight, is_positive=self.step.has_rows)
        return plan._replace(gradients=weighed, are_shares=True)

    def reduce_gradients(self, plan: GradientPlan) -> list[Any]:
        """Sum prepared gradients over ranks or on owners, and layer state with them."""
        if self.are_reduced:
            return list(plan.gradients)
        # The lookups have sent those of divided tables to their ranks.
        tables = {
            i for i, v in enumerate(plan.variables) if isinstance(v, DividedTable)
        }
        if not tables:
            return self._reduce(plan)
        rest = [i for i in range(len(plan.gradients)) if i not in tables]
        results = [*plan.gradients]
        sums = self._reduce(
            plan._replace(
                gradients=[results[i] for i in rest],
                variables=[plan.variables[i] for i in rest],
                owners=[plan.owners[i] for i in rest] if plan.owners else (),
            )
        )
        for i, total in zip(rest, sums, strict=True):
            results[i] = total
        return results

    def _reduce(self, plan: GradientPlan) -> list[Any]:
        """Sum the gradients of weights that all ranks have, and layer state."""
        step, loop_step = self.step, self.loop_step
        state, values = [], []
        if step is not None:
            state = self._state_of_step(step)
            values = [tf.convert_to_tensor(variable) for variable in state]
            values = weigh(values, step.share(), is_positive=step.has_rows)
        elif loop_step is not None:
            state = loop_step.take_state()
            values = loop_step.weighed(state) if state else []
        if step is not None and step.trainer is not None and step.trainer.jit_compile:
            # XLA would join what ranks wait for in different orders.
            plan = plan._replace(owners=())
        name, count = name_in_graph("gradients"), len(plan.gradients)
        numbers = self._numbers.of(step or loop_step, plan.gradients)
        results = self._reducer.reduce(plan, name, beside=[*values, *numbers])
        if numbers:
            *results, total = results
            results = self._numbers.checked(results, numbers[0], total)
        if step is not None:
            step.reduced_state(state, results[count:])
        elif loop_step is not None and state:
            loop_step.assign_mean(state, results[count:])
        return results[:count]

    def weight_of_lookups(self) -> Any:
        """Return the rank's share of a step that all run, 1 in a custom loop."""
        if self.step is None:
            return None if self.loop_step is None else 1.0
        if not self.step.is_joint:
            return None
        is_predicting = self.step.trainer is None
        return 1.0 if is_predicting else self._reducer.weight(self.step.share())

    def gradient_state(self, variables: Sequence[Any]) -> list[Any]:
        """Return what the reduction of these variables' gradients remembers."""
        return self._reducer.state(
            [v for v in variables if not isinstance(v, DividedTable)]
        )

    def traced_kinds(self) -> dict[str, str]:
        """Return the kind of each gradient in the steps traced so far, by path."""
        return self._reducer.traced_kinds()

    @property
    def is_updating(self) -> bool:
        """True while an optimizer makes the same update on all ranks."""
        return self.is_applying or self.are_reduced

    def applying(self) -> AbstractContextManager[None]:
        """Mark a block in which an optimizer assigns variables."""
        return holding(self, "is_applying", True)

    def gradients_are_reduced(self) -> AbstractContextManager[None]:
        """Mark a block in which an optimizer gets gradients that are already sums."""
        return holding(self, "are_reduced", True)

    def _state_of_step(self, step: Step) -> list[Any]:
        """Return the layer state that travels with gradients."""
        # A branch, such as that of accumulated gradients, may not run in every step.
        if step.trainer is None or not (step.is_joint and step.is_certain):
            return []
        return self.agreed_state(step)

    def agreed_state(self, step: Step) -> list[Any]:
        """Return the layer state that any rank has assigned in a step so far."""
        variables = step.reducible()
        if not variables:
            return []
        ids = [id(variable) for variable in variables]
        mine = tuple(i for i, key in enumerate(ids) if key in step.assigned)
        step.agreements += 1
        known = self._noted.agreed.setdefault(step.trainer, {})
        key = (self._collective.rank, *ids, step.agreements, mine)
        # As with gradients, the ranks agree once per graph.
        if tf.executing_eagerly() or key not in known:
            by_rank = self._collective.exchange("state of layers", mine)
            known[key] = sorted({i for positions in by_rank for i in positions})
        return [variables[i] for i in known[key]]
