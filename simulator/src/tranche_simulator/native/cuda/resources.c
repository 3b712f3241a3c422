#include "resources.h"

#include "allocations.h"
#include "arrays.h"
#include "events.h"
#include "modules.h"
#include "streams.h"

void resources_free(CUcontext context) {
    events_free(context);
    streams_free(context);
    modules_free(context);
    arrays_free(context);
    allocations_free(context);
}
