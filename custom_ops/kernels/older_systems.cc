// Two symbols that compilers since GCC 11 take from the C and C++ libraries of
// the machine that they run on. Defined here, and for nobody else, they let the
// library load wherever TensorFlow's own wheel does: it would want glibc 2.32
// and the C++ library of GCC 11 otherwise, and nothing else of it is so new.

#include <new>

#define TF_CONVPAR_HIDDEN __attribute__((visibility("hidden")))

extern "C" {
// Declared in <sys/single_threaded.h>, if there is one. 0: there may be other
// threads, so shared pointers count by atomic operations.
extern TF_CONVPAR_HIDDEN char __libc_single_threaded;
char __libc_single_threaded = 0;
}

namespace std {
// Of std::allocator, for more elements than a memory can have.
[[noreturn]] TF_CONVPAR_HIDDEN void __throw_bad_array_new_length();

void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std
