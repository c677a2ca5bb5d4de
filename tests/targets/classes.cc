// Objects of C++ classes that hold pages of a heap that was mostly freed: by RTTI, of a template, of a class that no
// other file knows, and behind a shared pointer. Prints how many there are of each, and sleeps until stdin ends.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace app {
struct Base {
    virtual ~Base() = default;
    long before[6] = {};
};
struct Session : Base {
    long more[4] = {};
};
template <class T> struct Cache final : virtual Base {
    T value{};
    virtual void touch() {}
};
} // namespace app

namespace {
struct Hidden {
    virtual ~Hidden() = default;
    char text[100] = {};
};
} // namespace

int main() {
    enum { ROUNDS = 20000, SESSIONS = 20, OTHERS = 80 };
    std::vector<std::unique_ptr<app::Base>> kept;
    std::vector<std::unique_ptr<Hidden>> hidden;
    std::vector<void *> gone;
    for (int round = 0; round < ROUNDS; round++) {
        gone.push_back(memset(malloc(1500), 1, 1500));
        if (round % SESSIONS == 0) kept.emplace_back(new app::Session);
        if (round % OTHERS == 0) {
            kept.emplace_back(new app::Cache<int>);
            hidden.emplace_back(new Hidden);
        }
    }
    for (void *one : gone) free(one);
    printf("READY {\"app::Session\":%d,\"app::Cache<int>\":%d,\"(anonymous namespace)::Hidden\":%d}\n", ROUNDS / SESSIONS,
           ROUNDS / OTHERS, ROUNDS / OTHERS);
    fflush(stdout);
    return getchar() == 'x';
}
