// Allocates in C++: in a try, in a handler, in a destructor while an exception passes, in templates, lambdas, virtual
// functions and callbacks of the standard library. See paths.h for what is printed.
#include "paths.h"
#include <algorithm>
#include <functional>
#include <stdexcept>
#include <vector>

#define DRIVEN(mark) " < shop::drive@" mark " < main@driving_cpp < * < _start"
#define PATH(id, through) static path id = {#id, through, nullptr, 0, 0, 0, 0, 0, 0, 0}

PATH(tried, "make_object@made < shop::trying@tried" DRIVEN("drive_tried"));
PATH(caught, "make_object@made < shop::catching@caught" DRIVEN("drive_caught"));
PATH(unwound, "make_object@made < shop::Guard::~Guard@guard < shop::unwinding" DRIVEN("drive_unwound"));
PATH(after, "make_object@made < shop::unwinding@after" DRIVEN("drive_unwound"));
PATH(whole, "make_object@made < shop::Cart<int>::fill@filled < shop::whole_cart@whole" DRIVEN("drive_whole"));
PATH(real, "make_object@made < shop::Cart<double>::fill@filled < shop::real_cart@real" DRIVEN("drive_real"));
PATH(called, "make_object@made < shop::with_lambda()::{lambda()#1}::operator()@lambda < * < shop::apply@apply < shop::with_lambda@called" DRIVEN("drive_called"));
PATH(dispatched, "make_object@made < shop::Loud::speak@speak < shop::dispatch@dispatch" DRIVEN("drive_dispatched"));
PATH(sorted, "make_object@made < shop::less@less < * < shop::sorting@sorting_cpp" DRIVEN("drive_sorted"));

// Static functions and lambdas have no linkage name, so that DWARF names them without their scope.
namespace shop {

FRAME void thrower(bool really) {
    if (really) throw std::runtime_error("no");
    FOLLOWED;
}

FRAME static void trying() {
    try {
        make_object(&tried); /* mark: tried */
        thrower(true);
    } catch (const std::exception &) {
        FOLLOWED;
    }
}

FRAME void catching() {
    try {
        thrower(true);
    } catch (const std::exception &) {
        make_object(&caught); /* mark: caught */
        FOLLOWED;
    }
    FOLLOWED;
}

struct Guard {
    FRAME ~Guard() {
        make_object(&unwound); /* mark: guard */
        FOLLOWED;
    }
};

FRAME static void unwinding() {
    try {
        Guard guard;
        thrower(true);
        FOLLOWED;
    } catch (const std::exception &) {
        FOLLOWED;
    }
    make_object(&after); /* mark: after */
    FOLLOWED;
}

template <typename T> struct Cart {
    T last;
    FRAME void fill(path *which) {
        make_object(which); /* mark: filled */
        last = T(1);
        FOLLOWED;
    }
};
FRAME void whole_cart() {
    Cart<int> cart{};
    cart.fill(&whole); /* mark: whole */
    FOLLOWED;
}
FRAME void real_cart() {
    Cart<double> cart{};
    cart.fill(&real); /* mark: real */
    FOLLOWED;
}

FRAME void apply(const std::function<void()> &what) {
    what(); /* mark: apply */
    FOLLOWED;
}
FRAME void with_lambda() {
    apply([]() __attribute__((noinline, noipa)) { /* mark: called */
        make_object(&called); /* mark: lambda */
        FOLLOWED;
    });
    FOLLOWED;
}

struct Voice {
    virtual void speak() = 0;
    virtual ~Voice() = default;
};
struct Loud : Voice {
    FRAME void speak() override {
        make_object(&dispatched); /* mark: speak */
        FOLLOWED;
    }
};
FRAME void dispatch(Voice *voice) {
    voice->speak(); /* mark: dispatch */
    FOLLOWED;
}

FRAME static bool less(int left, int right) {
    make_object(&sorted); /* mark: less */
    FOLLOWED;
    return left < right;
}
/* Two elements are compared once. */
FRAME void sorting() {
    std::vector<int> two{1, 2};
    std::stable_sort(two.begin(), two.end(), less); /* mark: sorting_cpp */
    FOLLOWED;
}

FRAME void drive() {
    Loud loud;
    trying();        /* mark: drive_tried */
    catching();      /* mark: drive_caught */
    unwinding();     /* mark: drive_unwound */
    whole_cart();    /* mark: drive_whole */
    real_cart();     /* mark: drive_real */
    with_lambda();   /* mark: drive_called */
    dispatch(&loud); /* mark: drive_dispatched */
    sorting();       /* mark: drive_sorted */
    FOLLOWED;
}

} // namespace shop

int main(int argc, char **argv) {
    truth_begin(argc, argv);
    for (path *known : {&tried, &caught, &unwound, &after, &whole, &real, &called, &dispatched, &sorted})
        paths_know(known);
    ready();
    for (u64 n = option("rounds", 100); n > 0; n--) {
        paths_begin_round();
        shop::drive(); /* mark: driving_cpp */
        paths_end_round();
    }
    paths_finish();
    return 0;
}
