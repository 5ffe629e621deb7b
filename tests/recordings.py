"""Trainings that last as long as what records them."""

import keras


class UntilRecorded(keras.callbacks.Callback):
    """Ends `fit` when a timeline has its steps, however slow the machine is."""

    def __init__(self, line):
        super().__init__()
        self.line = line

    def on_train_batch_end(self, batch, logs=None):
        recording = self.line._recording
        if recording is not None and recording.done():
            self.model.stop_training = True
