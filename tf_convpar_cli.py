"""The program `convpar`, and `python -m tf_convpar_cli`.

It is not a module of the package. The package's import registers layers with
Keras, and so waits seconds for TensorFlow, which `convpar --help` must not.
"""


def main() -> None:
    """Runs a command of `tf_convpar.cli`."""
    from tf_convpar.cli.main import main as run

    run(prog_name="convpar")


if __name__ == "__main__":
    # The package looks for this module by its name.
    import tf_convpar_cli

    tf_convpar_cli.main()
