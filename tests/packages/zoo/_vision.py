"""Classifiers, segmenters and detectors of several packages."""

import keras
import numpy as np

from zoo._entry import boxes
from zoo._entry import classified
from zoo._entry import images
from zoo._entry import model

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


# kimm


def kimm_net(name, size=64):
    import kimm

    return getattr(kimm.models, name)(
        input_shape=(size, size, 3), weights=None, classes=5
    )


@model("kimm", "GhostNetV2", dtype="float64")
def _():
    return kimm_net("GhostNetV2W100")


@model("kimm", "RegNetY", dtype="float64")
def _():
    return kimm_net("RegNetY002")


# TensorFlow 2.21 with oneDNN writes beyond its memory in gradients of 1x1
# convolutions of three channels with strides, such as MobileOne's before this.
@model("kimm", "MobileOne, reparameterized", dtype="float64")
def _():
    from kimm.utils import get_reparameterized_model

    return get_reparameterized_model(kimm_net("MobileOneS0"))


@model("kimm", "MobileViT")
def _():
    return kimm_net("MobileViTXXS")
