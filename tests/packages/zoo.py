"""Models of other people's packages, small, with random weights.

A function for each, named by its package and what it makes. It imports the
package, and returns a model, or a model that is compiled, images and labels.
"""

import typing

import keras
import numpy as np

L = keras.layers
COUNT = 6
MODELS = []


class Entry(typing.NamedTuple):
    package: str
    name: str
    module: str
    make: typing.Callable
    fails: str | None


# What is imported, where it is called otherwise.
MODULES = {
    "keras-tcn": "tcn",
    "classification-models-3D": "classification_models_3D.kkeras",
}


def model(package, name, fails=None):
    """Adds a model; `fails` is what plain Keras says to it, if it does."""

    def add(make):
        MODELS.append(
            Entry(
                package,
                name,
                MODULES.get(package, package.replace("-", "_")),
                make,
                fails,
            )
        )
        return make

    return add


def images(*shape, count=COUNT):
    return np.random.default_rng(0).uniform(size=(count, *shape)).astype("f4")


def classified(features, classes=5):
    """Feature maps of a backbone, with the usual head."""
    x = L.GlobalAveragePooling2D()(features.output)
    x = L.Dense(classes, activation="softmax")(x)
    return keras.Model(features.input, x)


def boxes(count=COUNT, of=2, size=64):
    """Corners of boxes in each image, as fractions of its size."""
    rng = np.random.default_rng(1)
    first = rng.uniform(0.05, 0.4, (count, of, 2))
    last = first + rng.uniform(0.2, 0.5, (count, of, 2))
    return (np.concatenate([first, last], -1) * size).astype("f4")


# keras-hub


def hub_resnet(**kwargs):
    from keras_hub import models

    return models.ResNetBackbone(
        **{
            "input_conv_filters": [64],
            "input_conv_kernel_sizes": [7],
            "stackwise_num_filters": [64, 24, 32],
            "stackwise_num_blocks": [1, 2, 1],
            "stackwise_num_strides": [1, 2, 2],
            "block_type": "basic_block",
            "image_shape": (64, 64, 3),
            **kwargs,
        }
    )


@model("keras-hub", "ResNet")
def _():
    from keras_hub import models

    return models.ImageClassifier(hub_resnet(), 5, activation="softmax")


@model("keras-hub", "ResNetV2, features of all levels")
def _():
    net = hub_resnet(use_pre_activation=True)
    return keras.Model(net.input, net.pyramid_outputs)


@model("keras-hub", "EfficientNetV2")
def _():
    from keras_hub import models

    net = models.EfficientNetBackbone(
        stackwise_kernel_sizes=[3] * 4,
        stackwise_num_repeats=[1, 2, 2, 2],
        stackwise_input_filters=[8, 8, 12, 16],
        stackwise_output_filters=[8, 12, 16, 24],
        stackwise_expansion_ratios=[1, 4, 4, 4],
        stackwise_squeeze_and_excite_ratios=[0, 0, 0.25, 0.25],
        stackwise_strides=[1, 2, 2, 2],
        stackwise_block_types=["fused", "fused", "unfused", "unfused"],
        stackwise_force_input_filters=[0] * 4,
        stackwise_nores_option=[False] * 4,
        stackwise_width_coefficients=[1.0] * 4,
        stackwise_depth_coefficients=[1.0] * 4,
        num_features=64,
        input_shape=(48, 48, 3),
    )
    return models.ImageClassifier(net, 5)


@model("keras-hub", "DenseNet")
def _():
    from keras_hub import models

    net = models.DenseNetBackbone([2, 2, 2], (64, 64, 3), growth_rate=8)
    return models.ImageClassifier(net, 5)


@model("keras-hub", "MobileNet")
def _():
    from keras_hub import models

    net = models.MobileNetBackbone(
        stackwise_expansion=[[40, 56], [64, 144]],
        stackwise_num_blocks=[2, 2],
        stackwise_num_filters=[[16, 16], [24, 24]],
        stackwise_kernel_size=[[3, 3], [5, 5]],
        stackwise_num_strides=[[2, 1], [2, 1]],
        stackwise_se_ratio=[[None, None], [0.25, 0.25]],
        stackwise_activation=[["relu"] * 2, ["hard_swish"] * 2],
        stackwise_padding=[[1, 1], [2, 2]],
        output_num_filters=48,
        depthwise_filters=8,
        depthwise_stride=2,
        depthwise_residual=False,
        last_layer_filter=64,
        squeeze_and_excite=0.5,
        image_shape=(64, 64, 3),
    )
    return models.ImageClassifier(net, 5)


@model("keras-hub", "CSPNet")
def _():
    from keras_hub import models

    net = models.CSPNetBackbone(
        stem_filters=16,
        stem_kernel_size=3,
        stem_strides=1,
        stackwise_depth=[1, 2],
        stackwise_strides=[2, 2],
        stackwise_num_filters=[24, 32],
        block_type="dark_block",
        stage_type="dark",
        image_shape=(32, 32, 3),
    )
    return models.ImageClassifier(net, 5)


@model("keras-hub", "VGG")
def _():
    from keras_hub import models

    net = models.VGGBackbone([1, 1, 2], [16, 32, 48], (32, 32, 3))
    return classified(net)


@model("keras-hub", "Xception")
def _():
    from keras_hub import models

    net = models.XceptionBackbone(
        [[16, 24], [32, 48], [48, 48]], [True, True, False], (64, 64, 3)
    )
    return models.ImageClassifier(net, 5)


@model("keras-hub", "HGNetV2")
def _():
    from keras_hub import models

    net = models.HGNetV2Backbone(
        depths=[1, 2],
        embedding_size=16,
        hidden_sizes=[32, 64],
        stem_channels=[3, 16, 16],
        hidden_act="relu",
        use_learnable_affine_block=True,
        stackwise_stage_filters=[(16, 8, 32, 1, 2, 3), (32, 16, 64, 2, 2, 5)],
        apply_downsample=[False, True],
        use_lightweight_conv_block=[False, True],
        image_shape=(64, 64, 3),
    )
    return keras.Model(net.input, net.output)


@model("keras-hub", "DeepLabV3, segmented")
def _():
    from keras_hub import models

    net = models.DeepLabV3Backbone(
        image_encoder=hub_resnet(),
        low_level_feature_key="P2",
        spatial_pyramid_pooling_key="P4",
        upsampling_size=4,
        dilation_rates=[2, 3],
        projection_filters=8,
        image_shape=(64, 64, 3),
    )
    return models.DeepLabV3ImageSegmenter(net, 4)


@model("keras-hub", "SegFormer, segmented")
def _():
    from keras_hub import models

    encoder = models.MiTBackbone(
        image_shape=(64, 64, 3),
        num_layers=2,
        hidden_dims=[16, 32],
        layerwise_depths=[1, 1],
        layerwise_num_heads=[1, 2],
        layerwise_sr_ratios=[2, 1],
        layerwise_patch_sizes=[7, 3],
        layerwise_strides=[4, 2],
        max_drop_path_rate=0.1,
    )
    net = models.SegFormerBackbone(image_encoder=encoder, projection_filters=16)
    return models.SegFormerImageSegmenter(net, 4)


@model("keras-hub", "VAE of Stable Diffusion")
def _():
    from keras_hub.src.models.vae.vae_backbone import VAEBackbone

    net = VAEBackbone([32, 32, 32, 32], [1] * 4, [32, 32, 32, 32], [1] * 4)
    # It takes images of any size.
    return net, images(32, 32, 3), None


@model("keras-hub", "RetinaNet, boxes")
def _():
    from keras_hub import models

    net = models.RetinaNetBackbone(
        image_encoder=hub_resnet(),
        min_level=3,
        max_level=4,
        use_p5=False,
        image_shape=(64, 64, 3),
    )
    net = models.RetinaNetObjectDetector(
        net, 3, bounding_box_format="xyxy", pre_logits_num_conv_layers=1
    )
    net.compile(
        keras.optimizers.SGD(1e-3),
        box_loss="Huber",
        classification_loss=keras.losses.BinaryFocalCrossentropy(
            from_logits=True, reduction="sum"
        ),
    )
    labels = np.random.default_rng(2).integers(0, 3, (6, 2))
    return net, images(64, 64, 3), {"boxes": boxes(), "labels": labels}


@model("keras-hub", "Whisper, one-dimensional")
def _():
    from keras_hub import models

    net = models.WhisperBackbone(
        20,
        1,
        2,
        16,
        24,
        num_mels=8,
        max_encoder_sequence_length=16,
        max_decoder_sequence_length=8,
    )
    rng = np.random.default_rng(0)
    return (
        net,
        {
            "encoder_features": images(16, 8),
            "decoder_token_ids": rng.integers(0, 20, (6, 8)),
            "decoder_padding_mask": np.ones((6, 8), "int32"),
        },
        None,
    )


# keras-cv


@model("keras-cv", "YOLOV8, boxes")
def _():
    import keras_cv

    backbone = keras_cv.models.YOLOV8Backbone(
        [8, 16, 24, 32], [1, 1, 1, 1], False, input_shape=(64, 64, 3)
    )
    net = keras_cv.models.YOLOV8Detector(
        backbone, 3, bounding_box_format="xyxy", fpn_depth=1
    )
    net.compile(
        optimizer=keras.optimizers.SGD(1e-3),
        classification_loss="binary_crossentropy",
        box_loss="ciou",
        jit_compile=False,
    )
    labels = np.random.default_rng(2).integers(0, 3, (6, 2)).astype("f4")
    return net, images(64, 64, 3), {"boxes": boxes(), "classes": labels}


@model("keras-cv", "DeepLabV3+, segmented")
def _():
    import keras_cv

    backbone = keras_cv.models.ResNetBackbone(
        stackwise_filters=[16, 24, 32, 48],
        stackwise_blocks=[1, 1, 1, 1],
        stackwise_strides=[1, 2, 2, 2],
        include_rescaling=True,
        input_shape=(64, 64, 3),
        block_type="block",
    )
    return keras_cv.models.DeepLabV3Plus(
        num_classes=3,
        backbone=backbone,
        projection_filters=8,
        spatial_pyramid_pooling=keras_cv.layers.SpatialPyramidPooling(
            [2, 3], num_channels=16
        ),
    )


@model("keras-cv", "CSPDarkNet")
def _():
    import keras_cv

    return classified(
        keras_cv.models.CSPDarkNetBackbone(
            stackwise_channels=[16, 24, 32, 48],
            stackwise_depth=[1, 1, 1, 1],
            include_rescaling=True,
            use_depthwise=True,
            input_shape=(64, 64, 3),
        )
    )


@model("keras-cv", "MobileNetV3")
def _():
    import keras_cv

    return classified(
        keras_cv.models.MobileNetV3Backbone(
            stackwise_expansion=[1, 4.5, 4, 6],
            stackwise_filters=[16, 24, 24, 40],
            stackwise_kernel_size=[3, 3, 5, 5],
            stackwise_stride=[2, 2, 1, 2],
            stackwise_se_ratio=[0.25, None, None, 0.25],
            stackwise_activation=["relu", "relu", "hard_swish", "hard_swish"],
            include_rescaling=False,
            input_shape=(64, 64, 3),
        )
    )


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


# kyolo


def kyolo_net(name):
    import kyolo

    net = getattr(kyolo, name)(nc=3, input_shape=(64, 64, 3), deploy=False)
    detector = kyolo.YOLODetector(net)
    detector.compile(keras.optimizers.SGD(1e-3))
    labels = np.random.default_rng(2).integers(0, 3, (6, 2))
    return (
        detector,
        images(64, 64, 3),
        {"boxes": boxes(), "labels": labels, "mask": np.ones((6, 2), "f4")},
    )


@model("kyolo", "YOLOv8n, boxes")
def _():
    return kyolo_net("yolov8n")


@model("kyolo", "YOLO11n, boxes")
def _():
    return kyolo_net("yolo11n")


# segmodels-keras


@model("segmodels-keras", "Unet of ResNet18")
def _():
    import segmodels_keras as sm

    return sm.Unet(
        "resnet18",
        (64, 64, 3),
        encoder_weights=None,
        decoder_filters=(32, 24, 16, 8, 8),
    )


@model("segmodels-keras", "FPN of MobileNetV2")
def _():
    import segmodels_keras as sm

    return sm.FPN(
        "mobilenetv2",
        (64, 64, 3),
        3,
        "softmax",
        encoder_weights=None,
        pyramid_block_filters=24,
    )


@model("segmodels-keras", "Linknet of MobileNet")
def _():
    import segmodels_keras as sm

    return sm.Linknet("mobilenet", (64, 64, 3), encoder_weights=None)


@model("segmodels-keras", "PSPNet of ResNet18")
def _():
    import segmodels_keras as sm

    return sm.PSPNet(
        "resnet18", (48, 48, 3), 3, encoder_weights=None, psp_conv_filters=16
    )


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


# kimm


def kimm_net(name, size=64):
    import kimm

    return getattr(kimm.models, name)(
        input_shape=(size, size, 3), weights=None, classes=5
    )


@model("kimm", "GhostNetV2")
def _():
    return kimm_net("GhostNetV2W100")


@model("kimm", "RegNetY")
def _():
    return kimm_net("RegNetY002")


@model("kimm", "MobileOne")
def _():
    return kimm_net("MobileOneS0")


@model("kimm", "MobileViT")
def _():
    return kimm_net("MobileViTXXS")


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


# keras-unet-collection


def unet_of(name, *args, **kwargs):
    from keras_unet_collection import models

    return getattr(models, name)((64, 64, 3), *args, **kwargs)


@model("keras-unet-collection", "U-Net")
def _():
    return unet_of("unet_2d", [8, 12, 16], 2, batch_norm=True)


@model("keras-unet-collection", "V-Net")
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


@model("keras-unet-collection", "R2U-Net")
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
