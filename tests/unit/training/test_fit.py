import keras

from tfdist.training.fit import Decisions


def test_rates_of_optimizers_that_a_model_holds_by_itself_are_agreed_on(on_ranks):
    def call(collective):
        held = {name: keras.optimizers.SGD(0.5) for name in ("second", "first")}
        mine = keras.Model()
        mine.stop_training = False
        mine.first, mine.second = held["first"], held["second"]
        made = Decisions(mine, collective, [])
        if collective.rank == 1:
            mine.second.learning_rate = 0.25
        made.after("epoch_end")
        return float(mine.first.learning_rate), float(mine.second.learning_rate)

    assert on_ranks(2, call) == [(0.5, 0.25)] * 2
