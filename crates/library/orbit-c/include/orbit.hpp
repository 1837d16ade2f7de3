/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * orbit.hpp: what C++ adds to orbit.h. Namespace `orbits` (the name orbit is the C type's).
 *
 *     orbits::area area(1 << 20);
 *     auto *t = orbits::make<transaction>(area, 7);           // new in an area
 *     orbits::destroy(t);                                      // and delete
 *     using key = std::pair<const int, lock>;
 *     std::map<int, lock, std::less<int>, orbits::allocator<key>> locks{orbits::allocator<key>(area)};
 *
 * Containers whose nodes are in an area can be read in an orbit by their address, if the container
 * itself is in an area too (orbits::make<std::map<...>>(area, alloc)). What they allocate in an
 * orbit comes from the orbit's own heap: a task may copy one and work on the copy. What it changes
 * in one of an area is dropped after the call, as all it writes there, and what that has allocated
 * is lost: change copies.
 *
 * C++11 and later. Without exceptions (-fno-exceptions) an area that could not be made is false,
 * make() gives a null pointer, and an allocator or a delegated object that gets no memory ends the
 * program (std::abort); orbit_last_error() says why. Without RTTI all is the same. Thread safety as
 * in orbit.h.
 */
#ifndef ORBIT_HPP
#define ORBIT_HPP

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "orbit.h"

#if __cplusplus >= 201703L
#if __has_include(<memory_resource>)
#include <memory_resource>
#define ORBIT_HPP_PMR 1
#endif
#endif

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
#define ORBIT_HPP_EXCEPTIONS 1
#else
#define ORBIT_HPP_EXCEPTIONS 0
#endif

namespace orbits {

/* A failure of the library: the sentence of orbit_last_error() and the errno value (positive). */
class error : public std::runtime_error {
  public:
    explicit error(int number) : std::runtime_error(orbit_last_error()), number_(number < 0 ? -number : number) {}
    int number() const noexcept { return number_; }

  private:
    int number_;
};

namespace detail {

[[noreturn]] inline void no_memory()
{
#if ORBIT_HPP_EXCEPTIONS
    throw std::bad_alloc();
#else
    std::abort();
#endif
}

/* Memory of an area in main; in an orbit, of its own heap. Null: there is none. */
inline void *allocate(orbit_area *area, std::size_t align, std::size_t size)
{
    if (!orbit_is_orbit())
        return orbit_aligned_alloc(area, align, size);
    void *memory = nullptr;
    if (align < sizeof(void *))
        align = sizeof(void *);
    return posix_memalign(&memory, align, size != 0 ? size : 1) == 0 ? memory : nullptr;
}

inline void deallocate(void *memory) noexcept
{
    if (!orbit_is_orbit())
        orbit_free(memory);
    else if (!orbit_is_from_area(memory)) // an orbit's picture of an area has nothing to free
        std::free(memory);
}

/* The address that was made, of an object through a pointer to any of its bases: while it is whole.
 * */
template <class T> void *address_made(T *object, std::true_type) noexcept { return dynamic_cast<void *>(object); }
template <class T> void *address_made(T *object, std::false_type) noexcept { return object; }

} // namespace detail

/* An area that ends with its owner; while orbits use it, with the last of these instead: when that
 * is destroyed, or detached from the area. */
class area {
  public:
    explicit area(std::size_t init_size) : handle_(orbit_area_create(init_size, nullptr)) { check(); }
    explicit area(const orbit_area_options &options) : handle_(orbit_area_create_with(&options)) { check(); }
    area(area &&other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
    area &operator=(area &&other) noexcept
    {
        std::swap(handle_, other.handle_);
        return *this;
    }
    area(const area &) = delete;
    area &operator=(const area &) = delete;
    ~area()
    {
        if (handle_ != nullptr)
            orbit_area_release(handle_);
    }
    orbit_area *get() const noexcept { return handle_; }
    operator orbit_area *() const noexcept { return handle_; }

  private:
    void check() const
    {
#if ORBIT_HPP_EXCEPTIONS
        if (handle_ == nullptr)
            throw error(errno);
#endif
    }
    orbit_area *handle_;
};

/* An allocator for containers of the standard library, in an area. Equal if the areas are. In an
 * orbit it allocates from the orbit's own heap. */
template <class T> class allocator {
  public:
    using value_type = T;
    using propagate_on_container_copy_assignment = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;

    allocator(orbit_area *area) noexcept : area_(area) {}
    allocator(const orbits::area &area) noexcept : area_(area.get()) {}
    template <class U> allocator(const allocator<U> &other) noexcept : area_(other.area()) {}

    T *allocate(std::size_t count)
    {
        void *memory = nullptr;
        if (count <= static_cast<std::size_t>(-1) / sizeof(T))
            memory = detail::allocate(area_, alignof(T), count * sizeof(T));
        if (memory == nullptr)
            detail::no_memory();
        return static_cast<T *>(memory);
    }
    void deallocate(T *object, std::size_t) noexcept { detail::deallocate(object); }
    orbit_area *area() const noexcept { return area_; }

  private:
    orbit_area *area_;
};
template <class T, class U> bool operator==(const allocator<T> &a, const allocator<U> &b) noexcept
{
    return a.area() == b.area();
}
template <class T, class U> bool operator!=(const allocator<T> &a, const allocator<U> &b) noexcept { return !(a == b); }

#ifdef ORBIT_HPP_PMR
/* The same for containers of std::pmr, from C++17 on. A task may read such a container; for a copy
 * that it makes to grow there, the resource is to be in an area too, or made before the library is
 * set up. Equal to itself only. */
class memory_resource : public std::pmr::memory_resource {
  public:
    explicit memory_resource(orbit_area *area) noexcept : area_(area) {}
    explicit memory_resource(const orbits::area &area) noexcept : area_(area.get()) {}
    orbit_area *area() const noexcept { return area_; }

  private:
    void *do_allocate(std::size_t bytes, std::size_t alignment) override
    {
        void *memory = detail::allocate(area_, alignment, bytes);
        if (memory == nullptr)
            detail::no_memory();
        return memory;
    }
    void do_deallocate(void *object, std::size_t, std::size_t) noexcept override { detail::deallocate(object); }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

    orbit_area *area_;
};
#endif

/* new T(args...) in an area. Throws std::bad_alloc, and what the constructor throws; without
 * exceptions, null. */
template <class T, class... Args> T *make(orbit_area *area, Args &&...args)
{
    static_assert(!std::is_array<T>::value, "for arrays use a std::vector with orbits::allocator");
    void *memory = orbit_aligned_alloc(area, alignof(T), sizeof(T));
#if ORBIT_HPP_EXCEPTIONS
    if (memory == nullptr)
        throw std::bad_alloc();
    try {
        return ::new (memory) T(std::forward<Args>(args)...);
    } catch (...) {
        orbit_free(memory);
        throw;
    }
#else
    return memory == nullptr ? nullptr : ::new (memory) T(std::forward<Args>(args)...);
#endif
}

/* delete of what make made, through a pointer to the type that was made or to a base of it with a
 * virtual destructor, wherever that lies in the object. */
template <class T> void destroy(T *object) noexcept
{
    if (object != nullptr) {
        auto *plain = const_cast<typename std::remove_cv<T>::type *>(object);
        void *made = detail::address_made(plain, std::integral_constant<bool, std::is_polymorphic<T>::value>());
        object->~T();
        orbit_free(made);
    }
}

/* Becomes the deleter of a base only if that has a virtual destructor: of any other base, neither
 * the right destructor nor the address that was made would be known. */
template <class T> struct deleter {
    constexpr deleter() noexcept = default;
    template <class U, class = typename std::enable_if<
                           std::is_convertible<U *, T *>::value &&
                           std::conditional<std::is_same<typename std::remove_cv<U>::type,
                               typename std::remove_cv<T>::type>::value,
                                            std::true_type, std::has_virtual_destructor<T>>::type::value>::type>
    deleter(const deleter<U> &) noexcept
    {
    }
    void operator()(T *object) const noexcept { destroy(object); }
};
/* A std::unique_ptr to an object in an area. */
template <class T> using unique_ptr = std::unique_ptr<T, deleter<T>>;
template <class T, class... Args> unique_ptr<T> make_unique(orbit_area *area, Args &&...args)
{
    return unique_ptr<T>(make<T>(area, std::forward<Args>(args)...));
}

/* Delegate objects (section 4.6.3): of a large struct only the few fields that a task reads
 * lie in an area, side by side with those of others; the rest stays where it was. The program
 * continues using the fields by their names:
 *
 *     struct transaction_delegate { lock *wait_lock; long version; };          // what the task sees
 *     struct transaction : orbits::delegated<transaction_delegate> {           // allocated as before
 *         using delegated::delegated;                                          // transaction(orbit_area *)
 *         ORBIT_DELEGATE_FIELD(wait_lock);                                     // was: lock *wait_lock;
 *         ORBIT_DELEGATE_FIELD(version);
 *         char everything_else[4000];
 *     };
 *     transaction t(area);  t.version++;  orbit_call(..., args with t.delegate() ...)
 *
 * The delegate is made before the fields (value-initialised) and freed after them. A delegated
 * object cannot be copied: it and its delegate are one to one. */
template <class Delegate> class delegated {
  public:
    using delegate_type = Delegate;
    explicit delegated(orbit_area *area) : delegate_(made(make<Delegate>(area))) {}
    delegated(const delegated &) = delete;
    delegated &operator=(const delegated &) = delete;
    ~delegated() { destroy(delegate_); }
    /* The delegate, at its address in the area: what to pass to the task. */
    Delegate *delegate() const noexcept { return delegate_; }

  private:
    static Delegate *made(Delegate *delegate)
    {
        if (delegate == nullptr)
            detail::no_memory();
        return delegate;
    }
    Delegate *const delegate_;
};
#define ORBIT_DELEGATE_FIELD(name) decltype(delegate_type::name) &name = this->delegate()->name

} // namespace orbits


#endif
