"""From a Pillow image to a uint8 array."""

import numpy as np

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # Pillow's name for c channels of 8 bits
GREY = ("1", "L", "LA", "La")


def check_memory(name: str, count: int, shape: tuple[int, int, int], memory_limit: float):
    """Refuses images that take more than ``memory_limit`` GiB, before the first is decoded."""
    need = count * np.prod(shape, dtype=np.int64) / 2**30
    if need > memory_limit:
        raise ValueError(
            f"{name}: {count:,} images of {shape[0]}x{shape[1]}x{shape[2]} take {need:.3g} GiB and "
            f"data.memory_limit is {memory_limit:g} GiB (they are held in host and device memory): lower "
            "data.size or raise data.memory_limit"
        )


def eight_bits(image):
    """A 16-bit grey image as 8 bits, round(x / 257); any other image as it is."""
    from PIL import Image

    if image.mode == "F":
        raise ValueError("floating-point pixels have no fixed range")
    if not image.mode.startswith("I"):
        return image
    value = np.asarray(image).astype(np.int64)
    if value.min() < 0 or value.max() > 65535:
        raise ValueError(f"grey values {value.min()}..{value.max()} are outside 16 bits")
    return Image.fromarray(((value + 128) // 257).astype(np.uint8))


def opaque(image):
    """An image without transparency: laid on white."""
    from PIL import Image

    if not image.has_transparency_data:
        return image
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)


def to_array(image, channels: int, size: int) -> np.ndarray:
    """[h, w, channels] uint8; with ``size`` the short side is resized to it and the centre cropped."""
    from PIL import Image, ImageOps

    if image.mode != MODES[channels]:
        image = image.convert(MODES[channels])
    if size and image.size != (size, size):
        image = ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
    array = np.asarray(image)
    return array[..., None] if channels == 1 else array
