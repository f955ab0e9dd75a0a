"""Bucket boundaries of the picker's histograms."""

# The reference's buckets, so that the histograms of both pickers can be summed; more buckets are added below or above
# where its range is too small.
SECONDS = (0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15,
            20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)  # fmt: skip
SHORT_SECONDS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1)
OWN_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.25, 0.5, 1, 2.5,
                5, 10)  # fmt: skip
STREAM_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600)
NTPOT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
TPOT_SECONDS = (0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3,
                 0.4, 0.5, 0.6, 0.8, 1, 2)  # fmt: skip
PREDICTED_TPOT_SECONDS = (*TPOT_SECONDS[:-1], 1.5, 2, 3, 4.5, 6, 12, 18, 24, 30, 36, 48, 60, 90, 120,
                           180, 270, 360)  # fmt: skip
PREDICTION_SECONDS = (1e-5, 2e-5, 5e-5, 1e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1,
                       2, 5)  # fmt: skip
ITL_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2)
REQUEST_BYTES = tuple(64 * 2**power for power in range(25))
SMALL = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
# A typing error of the reference (for 32768); boundaries must be equal for sums over both pickers.
_32778 = 32778
RESPONSE_BYTES = (*SMALL, 16384, _32778, 65536, 262144, 1048576, 4194304)
INPUT_TOKENS = (*SMALL, 16384, _32778, 65536, 131072, 262144, 524288, 1048576)
OUTPUT_TOKENS = (*SMALL, 16384, 32768, 65536)
RATIOS = tuple(step / 10 for step in range(11))
HIT_BYTES = (0, *(16 * 2**power for power in range(13)), 262144, 1048576, 4194304)
