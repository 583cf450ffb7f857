from tfdist.launch.machine import Machine


def test_each_process_has_an_address():
    machine = Machine("[fd00::1]", (1, 2), (0,))

    assert machine.addresses == ("[fd00::1]:1", "[fd00::1]:2")
