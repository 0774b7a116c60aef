"""Reads TensorBoard's files without TensorBoard."""

import pathlib
import struct

from tensorboardX.proto import event_pb2


def events(folder: pathlib.Path) -> list[tuple[str, int, float]]:
  """Returns the numbers in all files of a folder: name, step, value."""
  found = []
  for file in sorted(folder.glob("events*")):
    data = file.read_bytes()
    while data:
      # A length, its checksum, the event, its checksum.
      (length,) = struct.unpack("<Q", data[:8])
      event = event_pb2.Event.FromString(data[12 : 12 + length])
      data = data[16 + length :]
      found += [
        (value.tag, event.step, value.simple_value)
        for value in event.summary.value]
  return found
