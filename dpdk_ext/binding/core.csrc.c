#include "engine/version.h"
