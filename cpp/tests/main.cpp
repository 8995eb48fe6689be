#include "check.hpp"

int main() { return headfit::test::run_all(); }
