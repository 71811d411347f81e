"""Data sets in the layouts that they are published in, small, with images that can be told apart."""

import pickle

import numpy as np
from PIL import Image

CIFAR10_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def cifar_arrays(count, classes, seed):
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    images = rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    images[:, 0] = (labels * 255 // max(1, classes - 1))[:, None, None]  # the red plane tells the class
    return images, labels


def cifar10_python(root, count=20, protocol=2):
    """As Python 2 wrote it: text keys are bytes there; protocol 2 is the last that it knew."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    parts = []
    for seed, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        images, labels = cifar_arrays(count, 10, seed)
        batch = {b"data": images.reshape(count, -1), b"labels": labels.tolist(), b"batch_label": b"a batch"}
        (folder / name).write_bytes(pickle.dumps(batch, protocol))
        parts.append((images, labels))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [n.encode() for n in CIFAR10_NAMES]}, 2))
    return folder, parts


def cifar10_binary(root, count=20):
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for seed, name in enumerate([*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]):
        images, labels = cifar_arrays(count, 10, seed)
        records = np.concatenate([labels[:, None].astype(np.uint8), images.reshape(count, -1)], axis=1)
        (folder / name).write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(CIFAR10_NAMES) + "\n\n")
    return folder


def cifar100(root, layout, count=200):
    names = [f"class_{n}" for n in range(100)]
    parts = {}
    folder = root / ("cifar-100-python" if layout == "python" else "cifar-100-binary")
    folder.mkdir(parents=True)
    for seed, name in enumerate(("train", "test")):
        images, labels = cifar_arrays(count, 100, seed)
        parts[name] = images, labels
        if layout == "python":
            batch = {
                "data": images.reshape(count, -1),
                "fine_labels": labels.tolist(),
                "coarse_labels": [0] * count,
            }
            (folder / name).write_bytes(pickle.dumps(batch, 4))
        else:
            two = np.stack([np.full(count, 7), labels], axis=1).astype(np.uint8)  # coarse, then fine
            (folder / f"{name}.bin").write_bytes(np.concatenate([two, images.reshape(count, -1)], 1).tobytes())
    if layout == "python":
        (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}, 4))
    else:
        (folder / "fine_label_names.txt").write_text("\n".join(names))
    return parts


def image_folder(root, classes=3, train=8, test=4, size=(40, 30)):
    """JPEGs whose colour tells the class, in train/CLASS and val/CLASS."""
    rng = np.random.default_rng(0)
    for part, count in (("train", train), ("val", test)):
        for label in range(classes):
            folder = root / part / f"n{label:08d}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 60, (size[1], size[0], 3), dtype=np.uint8)
                pixels[..., label % 3] += 180
                Image.fromarray(pixels).save(folder / f"{part}_{number}.JPEG", quality=90)
    return root
