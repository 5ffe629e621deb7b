"""U-Nets of keras-unet-collection."""

from zoo._entry import model


def unet_of(name, *args, **kwargs):
    from keras_unet_collection import models

    return getattr(models, name)((64, 64, 3), *args, **kwargs)


@model("keras-unet-collection", "U-Net", dtype="float64")
def _():
    return unet_of("unet_2d", [8, 12, 16], 2, batch_norm=True)


@model(
    "keras-unet-collection",
    "V-Net",
    fails="Inputs have incompatible shapes",
)
def _():
    return unet_of("vnet_2d", [8, 16, 32], 2, batch_norm=True)


@model("keras-unet-collection", "U-Net++")
def _():
    return unet_of("unet_plus_2d", [8, 12, 16], 2, deep_supervision=True)


@model("keras-unet-collection", "UNET 3+")
def _():
    return unet_of("unet_3plus_2d", 2, [8, 12, 16], deep_supervision=True)


@model("keras-unet-collection", "Attention U-Net")
def _():
    return unet_of("att_unet_2d", [8, 12, 16], 2, batch_norm=True)


@model("keras-unet-collection", "R2U-Net", dtype="float64")
def _():
    return unet_of("r2_unet_2d", [8, 12], 2, batch_norm=True)


@model(
    "keras-unet-collection",
    "ResUnet-a",
    fails="'KerasTensor' object has no attribute 'get_shape'",
)
def _():
    return unet_of("resunet_a_2d", [8, 12, 16], [1, 3], 2)


@model("keras-unet-collection", "U^2-Net")
def _():
    return unet_of("u2net_2d", 2, [8, 12], deep_supervision=True)


@model(
    "keras-unet-collection",
    "TransUNET",
    fails="A KerasTensor cannot be used as input to a TensorFlow",
)
def _():
    return unet_of(
        "transunet_2d",
        [8, 12, 16],
        2,
        embed_dim=16,
        num_mlp=16,
        num_heads=2,
        num_transformer=1,
    )


@model(
    "keras-unet-collection",
    "Swin-UNET",
    fails="'tuple' object has no attribute 'as_list'",
)
def _():
    return unet_of("swin_unet_2d", 16, 2, 2, 1, 1, (2, 2), [2, 2], [2, 2], 16)
