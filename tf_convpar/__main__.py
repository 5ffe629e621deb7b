"""Makes `python -m tf_convpar` the same as `convpar`, only slower."""

from tf_convpar.cli.main import main

if __name__ == "__main__":
    main()
