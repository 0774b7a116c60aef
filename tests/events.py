"""Reads TensorBoard's files without TensorBoard."""

import io
import pathlib
import struct
from collections.abc import Iterator
from typing import Any

from PIL import Image
from tensorboardX.proto import event_pb2


def events(folder: pathlib.Path) -> list[tuple[str, int, float]]:
  """Returns the numbers in all files of a folder: name, step, value."""
  return [
    (value.tag, step, value.simple_value)
    for step, value in _values(folder) if not value.HasField("image")]


def pictures(folder: pathlib.Path) -> dict[tuple[str, int], Image.Image]:
  """Returns the pictures in all files of a folder, by name and step."""
  return {
    (value.tag, step): Image.open(io.BytesIO(value.image.encoded_image_string))
    for step, value in _values(folder) if value.HasField("image")}


def _values(folder: pathlib.Path) -> Iterator[tuple[int, Any]]:
  """Yields all values with their steps."""
  for file in sorted(folder.glob("events*")):
    data = file.read_bytes()
    while data:
      # A length, its checksum, the event, its checksum.
      (length,) = struct.unpack("<Q", data[:8])
      event = event_pb2.Event.FromString(data[12 : 12 + length])
      data = data[16 + length :]
      yield from ((event.step, value) for value in event.summary.value)
