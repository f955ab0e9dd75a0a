"""What every test runs under; read before numpy is."""

import os

import hypothesis

# Tests run side by side on few cores, and BLAS threads that wait for each other spin: on two busy
# cores a step of embedded:tiny takes 6 ms with one thread and 175 ms with two. Servers that tests
# start inherit this.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# A case's time says how busy the machine is. What must be fast has a test that counts something else.
hypothesis.settings.register_profile("weft", deadline=None)
hypothesis.settings.load_profile("weft")
