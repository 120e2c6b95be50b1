// The header is C++ too.
#include <cstdio>
#include <vmio.h>

int main()
{
    vmio_cache_options options{};
    options.size = sizeof options;
    options.capacity_bytes = 8 << 20;
    vmio_cache *cache = nullptr;
    vmio_status status = vmio_cache_new(&options, &cache);
    std::printf("%s\n", vmio_strerror(status));
    vmio_cache_free(cache);
    return status == VMIO_OK ? 0 : 1;
}
