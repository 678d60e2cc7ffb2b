"""Functions of `tf.contrib.image`, for inputs on the host."""

from typing import Any

import tensorflow.compat.v1 as tf


def transform(
    images: Any,
    transforms: Any,
    interpolation: str = "NEAREST",
    output_shape: Any = None,
    name: str | None = None,
) -> Any:
    """Warps images by projective transforms.

    Args:
        images: `[batch, rows, columns, channels]`, `[rows, columns, channels]` or
            `[rows, columns]`.
        transforms: `[batch, 8]` or `[8]`: the source positions of output pixels.
        interpolation: 'NEAREST' or 'BILINEAR'. Defaults to 'NEAREST'.
        output_shape: The rows and columns of the result. Defaults to those of the
            images.
        name: The name of the operation.

    Returns:
        Images, with zeros where there is no source.
    """
    with tf.name_scope(name, "transform"):
        images = tf.convert_to_tensor(images)
        transforms = tf.convert_to_tensor(transforms, tf.float32)
        rank = images.shape.rank
        four = images
        if rank == 2:
            four = images[tf.newaxis, :, :, tf.newaxis]
        elif rank == 3:
            four = images[tf.newaxis]
        if transforms.shape.rank == 1:
            transforms = transforms[tf.newaxis]
        size = tf.shape(four)[1:3] if output_shape is None else output_shape
        warped = tf.raw_ops.ImageProjectiveTransformV3(
            images=four,
            transforms=transforms,
            output_shape=tf.cast(size, tf.int32),
            fill_value=0.0,
            interpolation=interpolation.upper(),
            fill_mode="CONSTANT",
        )
        if rank == 2:
            return warped[0, :, :, 0]
        return warped[0] if rank == 3 else warped


def compose_transforms(*transforms: Any) -> Any:
    """Returns the transforms that apply several ones in sequence.

    Args:
        *transforms: Transforms, as in `transform`.
    """
    matrices = [flat_transforms_to_matrices(transform) for transform in transforms]
    product = matrices[0]
    for matrix in matrices[1:]:
        product = tf.matmul(product, matrix)
    return matrices_to_flat_transforms(product)


def matrices_to_flat_transforms(transform_matrices: Any) -> Any:
    """Converts matrices to transforms, as in `transform`.

    Args:
        transform_matrices: `[batch, 3, 3]`.
    """
    matrices = tf.convert_to_tensor(transform_matrices, tf.float32)
    flat = tf.reshape(matrices / matrices[:, 2:, 2:], [-1, 9])
    return flat[:, :8]


def flat_transforms_to_matrices(transforms: Any) -> Any:
    """Converts transforms to matrices of `[batch, 3, 3]`.

    Args:
        transforms: As in `transform`.
    """
    transforms = tf.convert_to_tensor(transforms, tf.float32)
    transforms = tf.reshape(transforms, [-1, 8])
    ones = tf.ones([tf.shape(transforms)[0], 1])
    return tf.reshape(tf.concat([transforms, ones], 1), [-1, 3, 3])


def angles_to_projective_transforms(
    angles: Any, image_height: Any, image_width: Any, name: str | None = None
) -> Any:
    """Returns the transforms that rotate images around their centers.

    Args:
        angles: Radians, counterclockwise: one angle, or one for each image.
        image_height: The number of rows.
        image_width: The number of columns.
        name: The name of the operation.
    """
    with tf.name_scope(name, "angles_to_projective_transforms"):
        angles = tf.reshape(tf.convert_to_tensor(angles, tf.float32), [-1])
        height, width = (
            tf.cast(size, tf.float32) - 1 for size in (image_height, image_width)
        )
        cos, sin = tf.cos(angles), tf.sin(angles)
        zeros = tf.zeros_like(angles)
        columns = (
            cos,
            -sin,
            (width - (cos * width - sin * height)) / 2,
            sin,
            cos,
            (height - (sin * width + cos * height)) / 2,
            zeros,
            zeros,
        )
        return tf.stack(columns, axis=1)


def rotate(
    images: Any,
    angles: Any,
    interpolation: str = "NEAREST",
    name: str | None = None,
) -> Any:
    """Rotates images counterclockwise around their centers.

    Args:
        images: As in `transform`.
        angles: As in `angles_to_projective_transforms`.
        interpolation: As in `transform`.
        name: The name of the operation.
    """
    images = tf.convert_to_tensor(images)
    rows = 1 if images.shape.rank == 4 else 0
    shape = tf.shape(images)
    transforms = angles_to_projective_transforms(angles, shape[rows], shape[rows + 1])
    return transform(images, transforms, interpolation, name=name)


def translations_to_projective_transforms(
    translations: Any, name: str | None = None
) -> Any:
    """Returns the transforms that move images.

    Args:
        translations: `[batch, 2]` or `[2]`: to the right, and down.
        name: The name of the operation.
    """
    with tf.name_scope(name, "translations_to_projective_transforms"):
        translations = tf.convert_to_tensor(translations, tf.float32)
        right, down = tf.unstack(tf.reshape(translations, [-1, 2]), axis=1)
        ones, zeros = tf.ones_like(right), tf.zeros_like(right)
        columns = (ones, zeros, -right, zeros, ones, -down, zeros, zeros)
        return tf.stack(columns, axis=1)


def translate(
    images: Any,
    translations: Any,
    interpolation: str = "NEAREST",
    name: str | None = None,
) -> Any:
    """Moves images to the right and down.

    Args:
        images: As in `transform`.
        translations: As in `translations_to_projective_transforms`.
        interpolation: As in `transform`.
        name: The name of the operation.
    """
    transforms = translations_to_projective_transforms(translations)
    return transform(images, transforms, interpolation, name=name)
