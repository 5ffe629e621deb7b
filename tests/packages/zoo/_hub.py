"""Models of keras-hub."""

import keras
import numpy as np

from zoo._entry import boxes
from zoo._entry import classified
from zoo._entry import images
from zoo._entry import model


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
        # Its first losses are of some hundreds, and boxes are exponentials.
        keras.optimizers.SGD(1e-3, global_clipnorm=1.0),
        box_loss="Huber",
        classification_loss=keras.losses.BinaryFocalCrossentropy(
            from_logits=True, reduction="sum"
        ),
    )
    # Plain Keras cannot predict a last batch of fewer images: its boxes are
    # selected by a number of images that is known while it is traced.
    count = 8
    labels = np.random.default_rng(2).integers(0, 3, (count, 2))
    truth = {"boxes": boxes(count), "labels": labels}
    return net, images(64, 64, 3, count=count), truth


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
