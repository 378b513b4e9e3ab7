#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace cpscope::reference {

/// Memory at the start of a cache line. Vectorised sums start at an address that decides their
/// order, so results are the same in every run only if buffers always start at the same alignment.
template <class T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  CacheLineAllocator() = default;
  template <class U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* memory, size_t) { ::operator delete(memory, kAlignment); }
  friend bool operator==(const CacheLineAllocator&, const CacheLineAllocator&) { return true; }
};

template <class T>
using AlignedVector = std::vector<T, CacheLineAllocator<T>>;

}  // namespace cpscope::reference
