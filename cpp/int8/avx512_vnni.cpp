// int8 for x86 CPUs with AVX-512 VNNI.
#include "int8/int8_vnni.h"

#include "int8/product.h"

namespace weft {

const Int8Kernels& avx512_vnni_int8_kernels() { return kInt8Table; }

}  // namespace weft
