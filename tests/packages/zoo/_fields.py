"""Models for microscopy, series, inference and volumes."""

import keras

from zoo._entry import images
from zoo._entry import model

L = keras.layers

# stardist and csbdeep


@model("stardist", "StarDist2D")
def _():
    from stardist.models import Config2D
    from stardist.models import StarDist2D

    net = StarDist2D(
        Config2D(
            n_rays=8,
            n_channel_in=1,
            grid=(2, 2),
            unet_n_depth=2,
            unet_n_filter_base=8,
            net_conv_after_unet=16,
        ),
        name=None,
        basedir=None,
    ).keras_model
    return net, images(32, 32, 1), None


@model("stardist", "StarDist3D")
def _():
    from stardist.models import Config3D
    from stardist.models import StarDist3D

    net = StarDist3D(
        Config3D(
            rays=8,
            n_channel_in=1,
            unet_n_depth=1,
            unet_n_filter_base=8,
            net_conv_after_unet=16,
        ),
        name=None,
        basedir=None,
    ).keras_model
    return net, images(16, 16, 16, 1), None


@model("csbdeep", "CARE, with a probability")
def _():
    from csbdeep.models import CARE
    from csbdeep.models import Config

    net = CARE(
        Config("YX", 1, 1, probabilistic=True, unet_n_depth=2, unet_n_first=8),
        name=None,
        basedir=None,
    ).keras_model
    return net, images(32, 32, 1), None


@model("csbdeep", "CARE, volumes")
def _():
    from csbdeep.models import CARE
    from csbdeep.models import Config

    net = CARE(
        Config("ZYX", 1, 1, unet_n_depth=2, unet_n_first=8),
        name=None,
        basedir=None,
    ).keras_model
    return net, images(8, 16, 16, 1), None


# keras-tcn


@model("keras-tcn", "TCN")
def _():
    from tcn import TCN

    x = keras.Input((24, 3))
    y = TCN(
        8,
        dilations=(1, 2, 4),
        use_batch_norm=True,
        dropout_rate=0.1,
        return_sequences=True,
    )(x)
    return keras.Model(x, L.Dense(1)(TCN(6, 2, dilations=(1, 2))(y)))


# bayesflow


@model("bayesflow", "ConvolutionalNetwork")
def _():
    import bayesflow

    net = bayesflow.networks.ConvolutionalNetwork(6, (8, 12, 16))
    x = keras.Input((16, 16, 2))
    return keras.Model(x, net(x))


@model("bayesflow", "TimeSeriesNetwork")
def _():
    import bayesflow

    net = bayesflow.networks.TimeSeriesNetwork(6, 12, recurrent_dim=8)
    x = keras.Input((16, 2))
    return keras.Model(x, net(x))


# classification-models-3D and segmentation-models-3D


def volumes_net(name, size=32, **kwargs):
    from classification_models_3D.kkeras import Classifiers

    make, _ = Classifiers.get(name)
    net = make(
        input_shape=(size, size, size, 1),
        weights=None,
        include_top=False,
        **kwargs,
    )
    y = L.GlobalAveragePooling3D()(net.output)
    return keras.Model(net.input, L.Dense(4, activation="softmax")(y))


@model("classification-models-3D", "ResNet18")
def _():
    return volumes_net("resnet18", init_filters=8)


@model("classification-models-3D", "SE-ResNet18")
def _():
    return volumes_net("seresnet18", init_filters=16)


@model("classification-models-3D", "MobileNet")
def _():
    return volumes_net("mobilenet", alpha=0.25)


@model("segmentation-models-3D", "Unet of MobileNet")
def _():
    import segmentation_models_3D as sm

    return sm.Unet(
        "mobilenet",
        (32, 32, 32, 1),
        encoder_weights=None,
        decoder_filters=(32, 16, 8, 8, 8),
    )


@model("segmentation-models-3D", "FPN of MobileNetV2")
def _():
    import segmentation_models_3D as sm

    return sm.FPN(
        "mobilenetv2",
        (32, 32, 32, 1),
        encoder_weights=None,
        pyramid_block_filters=16,
    )
