"""A host with GPUs, where there are none."""

import pytest
import tensorflow as tf


def device(kind, number):
    return tf.config.PhysicalDevice(f"/physical_device:{kind}:{number}", kind)


class Host:
    """What TensorFlow is asked for, and what it has been told."""

    def __init__(self):
        self.devices = self.visible = [device("CPU", 0)]
        self.configurations, self.growing = {}, []
        self.has_started = False

    def has(self, gpus):
        """Put so many GPUs into the host."""
        gpus = [device("GPU", number) for number in range(gpus)]
        self.devices = self.visible = [self.devices[0], *gpus]

    def list(self, kind=None):
        return [each for each in self.devices if kind in (None, each.device_type)]

    def get_visible(self, kind=None):
        return [each for each in self.visible if kind in (None, each.device_type)]

    def set_visible(self, devices, kind):
        self.check("Visible devices cannot be modified")
        others = [each for each in self.visible if each.device_type != kind]
        self.visible = [*others, *devices]

    def configure(self, device, configurations):
        self.check("Virtual devices cannot be modified")
        self.configurations[device] = configurations

    def grow(self, device, enable):
        self.check("Physical devices cannot be modified")
        # As TensorFlow refuses it.
        assert device not in self.configurations
        self.growing.append((device.name, enable))

    def check(self, message):
        if self.has_started:
            raise RuntimeError(message)


@pytest.fixture
def host(monkeypatch):
    """Stands for TensorFlow's functions about devices."""
    host = Host()
    for name, function in {
        "list_physical_devices": host.list,
        "get_visible_devices": host.get_visible,
        "set_visible_devices": host.set_visible,
        "get_logical_device_configuration": host.configurations.get,
        "set_logical_device_configuration": host.configure,
    }.items():
        monkeypatch.setattr(tf.config, name, function)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", host.grow)
    return host
